"""The comparison with published peaks: configs that say what was run, differences that cost what they should."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
published = pytest.importorskip("benchmarks.dryrun_published.__main__")
from benchmarks.dryrun_published.differences import ATTENTION, LOSS, OPTIMIZER, RECOMPUTATION, ROOT  # noqa: E402
from benchmarks.dryrun_published.rows import ROWS  # noqa: E402

from meshwright.config.load import load_config  # noqa: E402
from meshwright.config.run import resolve  # noqa: E402
from meshwright.spec.parameters import total  # noqa: E402

LAYERS, WIDTH, HEADS, INNER, VOCABULARY, TOKENS = 2, 128, 4, 384, 4096, 2 * 256
TINY = f"""
model:
  {{num_layers: {LAYERS}, hidden_size: {WIDTH}, num_heads: {HEADS}, num_kv_heads: 2, intermediate_size: {INNER},
  vocab_size: {VOCABULARY}}}
parallel_config: {{data_parallel: 2, zero_stage: 3}}
train: {{seq_length: 256, micro_batch_size: 2}}
recompute_config: {{select_recompute: [elementwise]}}
amp_config: {{amp_level: O2}}
"""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.config)
def test_configs_are_the_published_runs(row) -> None:
    run = resolve(load_config(row.path), row.world_size)
    size = {"llama3.1-8b": 8.03e9, "llama3.1-70b": 70.55e9, "llama3.1-405b": 405.85e9}
    named = next(name for name in size if row.config.startswith(name))
    assert total(run.model) == pytest.approx(size[named], rel=1e-3)
    assert run.layout.world_size == row.world_size


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory):
    path: Path = tmp_path_factory.mktemp("published") / "tiny.yaml"
    path.write_text(TINY)
    found = {"ours": published.dry_run(path, 2, ())}
    for difference in (RECOMPUTATION, LOSS, OPTIMIZER, ROOT):
        found[difference.name] = published.dry_run(path, 2, (difference,))
    # Without a loss of any size the peak is in a layer.
    for name, applied in (("small loss", ()), (ATTENTION.name, (ATTENTION,))):
        found[name] = published.dry_run(path, 2, applied, "model.vocab_size=128")
    return found


def part(report, phase: str, category: str) -> int:
    return report["phases"][phase]["categories"].get(category, 0)


def test_every_second_product_is_not_kept(reports) -> None:
    ours, theirs = (part(reports[name], "forward", "saved activations") for name in ("ours", "recompute"))
    # Of seven: key, output and up projections; 2 bytes for each of their elements.
    assert ours - theirs == 2 * LAYERS * TOKENS * (WIDTH // 2 + WIDTH + INNER)


def test_the_loss_keeps_a_log_softmax_in_fp32(reports) -> None:
    ours, theirs = (part(reports[name], "backward", "logits and loss") for name in ("ours", "loss"))
    assert ours < 3 * 4 * TOKENS * VOCABULARY <= theirs


def test_the_optimizer_takes_a_copy_of_the_parameters_held(reports) -> None:
    ours, theirs = (reports[name]["phases"]["optimizer"]["bytes"] for name in ("ours", "optimizer"))
    held = part(reports["ours"], "optimizer", "weights")
    assert theirs - ours == pytest.approx(held, rel=0.01)


def test_attention_repeats_keys_and_values(reports) -> None:
    ours, theirs = (reports[name]["phases"]["backward"]["bytes"] for name in ("small loss", "attention"))
    assert theirs - ours >= 2 * TOKENS * WIDTH


def test_the_embedding_stays_gathered_with_the_head(reports) -> None:
    ours, theirs = (part(reports[name], "forward", "gathered weights") for name in ("ours", "root group"))
    assert theirs - ours >= 2 * VOCABULARY * WIDTH
