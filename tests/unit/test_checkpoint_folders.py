"""Which checkpoint is the newest complete one, and which ones may go (B-18, B-19)."""

import json

import pytest
import torch

from meshwright.checkpoint import store


def save(root, step, *, run_id="run-a", keep=None, **kwargs):
    tensors = {"w": torch.full((4,), float(step))}
    return store.save(
        root, step, tensors=tensors, state={"step": step}, rank_state={}, run_id=run_id, keep=keep, **kwargs
    )


def names(root):
    return sorted(p.name for p in root.iterdir())


def value(path):
    target = {"w": torch.zeros(4)}
    store.load_tensors(path, target)
    return target["w"][0].item()


def test_nothing_there(tmp_path):
    assert store.find_latest(tmp_path / "none") == store.Found(None)
    (tmp_path / "step-12").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert store.find_latest(tmp_path) == store.Found(None)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda p: (p / "tensors/__0_0.distcp").write_bytes(b""), "tensors/__0_0.distcp has 0 bytes instead of"),
        (lambda p: (p / "tensors/.metadata").write_bytes(b"x"), "tensors/.metadata has 1 bytes instead of"),
        (lambda p: (p / "state.json").unlink(), "state.json is missing"),
        (lambda p: (p / "manifest.json").unlink(), "has no manifest.json: the save never finished"),
        (lambda p: (p / "manifest.json").write_bytes(b""), "manifest.json cannot be read"),
        (lambda p: (p / "manifest.json").write_text('{"format": 1, "files": []}'), "manifest.json cannot be read"),
        (lambda p: p.rename(p.with_name(f".{p.name}.partial")), "interrupted before it was complete"),
    ],
)
def test_b18_a_damaged_checkpoint_is_skipped_by_name_and_saved_again(tmp_path, damage, reason):
    save(tmp_path, 1)
    damaged = save(tmp_path, 2)
    damage(damaged)
    found = store.find_latest(tmp_path, "run-a")
    assert (found.path, found.step) == (tmp_path / "step-00000001", 1)
    [(path, why)] = found.skipped
    assert "step-00000002" in path.name
    assert reason in why
    if damaged.exists():
        with pytest.raises(store.CheckpointError, match=r"not complete|manifest"):
            store.read_state(damaged)

    assert store.find_latest(tmp_path).path != save(tmp_path, 2)
    found = store.find_latest(tmp_path, "run-a")
    assert (found.step, found.skipped) == (2, [])
    assert value(found.path) == 2.0


def test_a_manifest_of_a_later_format_is_not_guessed_at(tmp_path):
    path = save(tmp_path, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 2}))
    [(_, why)] = store.find_latest(tmp_path).skipped
    assert "has format 2; this version reads format 1" in why


def test_b19_keep_two_of_three(tmp_path):
    for step in (9800, 9900, 10000):
        save(tmp_path, step, keep=2)
    assert names(tmp_path) == ["step-00009900", "step-00010000"]
    assert store.find_latest(tmp_path).step == 10000


@pytest.mark.parametrize("keep", [0, None])
def test_b19_keep_zero_keeps_all(tmp_path, keep):
    for step in (1, 2, 3):
        save(tmp_path, step, keep=keep)
    assert len(names(tmp_path)) == 3


def test_b19_keep_one_with_a_failing_save_keeps_the_old_one(tmp_path):
    save(tmp_path, 1, keep=1)
    with pytest.raises(store.CheckpointError):
        store.save(tmp_path, 2, tensors={}, state={"x": {1, 2}}, rank_state={}, run_id="run-a", keep=1)
    assert names(tmp_path) == ["step-00000001"]
    save(tmp_path, 2, keep=1)
    assert names(tmp_path) == ["step-00000002"]


def test_b19_another_runs_folders_are_never_counted_removed_or_resumed(tmp_path):
    foreign = save(tmp_path, 5000, run_id="run-b")
    before = {p: p.read_bytes() for p in foreign.rglob("*") if p.is_file()}
    for step in (10, 20):
        save(tmp_path, step, keep=1)
    assert names(tmp_path) == ["step-00000020", "step-00005000"]
    assert {p: p.read_bytes() for p in foreign.rglob("*") if p.is_file()} == before
    assert store.find_latest(tmp_path, "run-a").step == 20

    (tmp_path / "step-00000020").rename(tmp_path / "elsewhere")
    found = store.find_latest(tmp_path, "run-a")
    assert found.path is None
    assert found.skipped == [(foreign, "it belongs to another run (run-b)")]
    with pytest.raises(store.CheckpointMismatch, match=r"belongs to another run \(run-b, this one is run-a\)"):
        save(tmp_path, 5000)
    assert {p: p.read_bytes() for p in foreign.rglob("*") if p.is_file()} == before


def test_b19_an_incomplete_one_is_not_counted_and_goes_in_its_turn(tmp_path):
    save(tmp_path, 1, keep=2)
    (save(tmp_path, 2, keep=2) / "state.json").unlink()
    save(tmp_path, 3, keep=2)
    assert names(tmp_path) == ["step-00000001", "step-00000002", "step-00000003"]
    save(tmp_path, 4, keep=2)
    assert names(tmp_path) == ["step-00000003", "step-00000004"]


def test_going_back_to_an_older_checkpoint_makes_the_new_branch_the_latest(tmp_path):
    for step in (50, 100, 150):
        save(tmp_path, step)
    save(tmp_path, 60, keep=2)
    assert store.find_latest(tmp_path, "run-a").step == 60
    assert names(tmp_path) == ["step-00000060", "step-00000150"]


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, 1)
    store.save(tmp_path, 1, tensors={"w": torch.full((4,), 9.0)}, state={}, rank_state={}, run_id="run-a")
    assert names(tmp_path) == ["step-00000001"]
    assert value(tmp_path / "step-00000001") == 9.0


def test_the_older_save_of_a_step_is_found_while_the_new_one_is_not_there(tmp_path):
    aside = save(tmp_path, 1).rename(tmp_path / ".step-00000001.replaced")
    found = store.find_latest(tmp_path, "run-a")
    assert (found.path, found.step) == (aside, 1)
    assert value(found.path) == 1.0
    save(tmp_path, 2)
    assert names(tmp_path) == [".step-00000001.replaced", "step-00000002"]
    save(tmp_path, 1)
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_a_folder_nobody_can_read_is_moved_not_deleted(tmp_path):
    broken = tmp_path / "step-00000001"
    broken.mkdir()
    (broken / "precious").write_text("x")
    save(tmp_path, 1, keep=1)
    assert names(tmp_path) == ["step-00000001", "step-00000001.unreadable-1"]
    assert (tmp_path / "step-00000001.unreadable-1" / "precious").exists()


def test_leftovers_of_this_run_go_with_the_next_save(tmp_path):
    save(tmp_path, 1).rename(tmp_path / ".step-00000001.removed")
    save(tmp_path, 2).rename(tmp_path / ".step-00000002.partial")
    save(tmp_path, 3, run_id="run-b").rename(tmp_path / ".step-00000003.partial")
    save(tmp_path, 4)
    assert names(tmp_path) == [".step-00000003.partial", "step-00000004"]
