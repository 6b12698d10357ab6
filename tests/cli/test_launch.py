"""The launcher as a process: ends, causes, restarts, signals, ports, lines, nodes. The ranks do not train."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIMIT = 300


def start(behaviour: str, logs: Path, nproc: int, *nodes: str, **env: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(HERE / "launch_driver.py"), behaviour, str(logs), str(nproc), *nodes],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean_environment(), "PYTHONPATH": str(HERE), **env},
    )


def clean_environment() -> dict[str, str]:
    ours = ("MASTER_", "TORCHELASTIC_", "MESHWRIGHT_")
    return {k: v for k, v in os.environ.items() if not k.startswith(ours) and k not in ("RANK", "WORLD_SIZE")}


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    return process.returncode, out, err


def seconds_since_the_first_failure(logs: Path) -> float:
    """From the moment a rank wrote down its failure: start-up is not what is timed."""
    records = [json.loads(path.read_text())["meshwright"] for path in logs.rglob("rank*.error.json")]
    now = time.time()
    return now - min((record["time"] for record in records), default=now)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and "Z" not in state(pid)]


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def wait_until_gone(pids: list[int], seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    return alive(pids)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_b24_a_first_cause_is_the_last_thing_on_the_screen(tmp_path):
    """Rank 2 of 4 raises ValueError("x") in step 3 (kohya_ss#1270; pytorch#118369, #126510)."""
    code, out, err = finish(start("raise", tmp_path, 4))
    assert seconds_since_the_first_failure(tmp_path) < 60
    assert code == 1
    lines = err.rstrip().splitlines()
    log = lines[-1].removeprefix("log of rank 2: ")
    assert lines[-2] == "first cause: rank 2, step 3, phase forward: ValueError: x"
    assert lines[-3] == "ValueError: x"
    assert 'raise ValueError("x")' in lines[-4]
    assert "ranks 0, 1, 3 ended as a consequence" in err
    assert "last complete checkpoint: runs/x/step_00000002" in lines[0]
    assert "ValueError: x" in Path(log).read_text()
    assert "Traceback" not in out
    assert err.count("Traceback") == 1


def test_a_rank_that_is_killed_each_time_is_started_again_as_often_as_was_asked_for(tmp_path):
    code, out, err = finish(start("kill", tmp_path, 2, RESTARTS="1"))
    assert code == 1
    cause = "rank 1, step 3, phase forward: killed by SIGKILL"
    told = out.splitlines()
    again = next(number for number, line in enumerate(told) if line.startswith("restart 1 of 1: "))
    assert told[again - 1].startswith(cause)
    assert "no checkpoint was saved yet: starting as before; 0 more are allowed" in told[again]
    lines = err.splitlines()
    assert lines[0] == "restarts: 1 of 1, after"
    assert lines[1].startswith(f"  1. {cause}")
    assert lines[-2].startswith(f"first cause: {cause}")
    assert "out-of-memory" in lines[-2]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_rank_that_exits_without_a_word_shows_the_end_of_its_log(tmp_path):
    code, out, err = finish(start("exit", tmp_path, 2, RESTARTS="1"))
    assert code == 1
    # A rank that leaves by itself would do so again.
    assert "restart" not in out + err
    assert "leaving through the back door" in err
    assert "first cause: rank 1, step 3, phase forward: exited with code 7" in err


def test_ranks_that_are_stuck_in_a_collective_end_at_once(tmp_path):
    """Not by SIGKILL, which torch's agent sends after 30 seconds, although they listen to wishes to stop."""
    code, _, err = finish(start("stuck", tmp_path, 3))
    assert seconds_since_the_first_failure(tmp_path) < 25
    assert code == 1
    assert "first cause: rank 1, step 3, phase forward: ValueError: x" in err
    assert "ranks 0, 2 ended as a consequence" in err


def test_ranks_that_were_started_differently_stop_before_the_first_step(tmp_path):
    code, out, err = finish(start("disagree", tmp_path, 3))
    assert code == 1
    assert "hash on ranks 0, 2" in err
    assert "hash-of-rank-1 on rank 1" in err
    assert "threads=" not in out


def test_lines_are_whole_carry_their_rank_and_go_to_one_file_per_rank(tmp_path):
    code, out, _ = finish(start("torn", tmp_path, 3))
    assert code == 0
    told = [line for line in out.splitlines() if "<" in line or ">" in line]
    assert len(told) == 3 * 3 * 50
    for line in told:
        assert re.fullmatch(r"\[rank (\d)\] <(\d)-{200}(\d)>", line), line
        assert len(set(re.findall(r"\d+(?=\]|-|>)", line.replace("-" * 200, "-")))) == 1, line
    (folder,) = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["rank0.log", "rank1.log", "rank2.log"]
    assert (folder / "rank1.log").read_text().count("<1") == 150


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stopped_launcher_leaves_no_orphans_and_names_the_checkpoint(tmp_path, name):
    process, pids = start_sleepers("sleep", tmp_path)
    process.send_signal(getattr(signal, name))
    code, _, err = finish(process)
    assert code == 128 + getattr(signal, name)
    assert f"stopped by {'Ctrl-C' if name == 'SIGINT' else name}" in err
    assert "last complete checkpoint: runs/x/step_00000002" in err
    assert "Traceback" not in err
    assert wait_until_gone(pids, 5) == []


def test_a_killed_launcher_leaves_no_orphans(tmp_path):
    process, pids = start_sleepers("sleep", tmp_path)
    process.kill()
    process.wait()
    assert wait_until_gone(pids, 10) == []


def test_a_second_sigterm_ends_ranks_that_do_not_stop(tmp_path):
    process, pids = start_sleepers("deaf", tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    heard = 0
    for line in process.stdout:
        heard += "heard SIGUSR1" in line
        if heard == 2:
            break
    assert len(alive(pids)) == 2
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in err
    assert wait_until_gone(pids, 5) == []


def start_sleepers(behaviour: str, logs: Path, *nodes: str, **env: str) -> tuple[subprocess.Popen, list[int]]:
    process = start(behaviour, logs, 2, *nodes, **env)
    return process, sleepers(process)


def sleepers(process: subprocess.Popen) -> list[int]:
    """Wait until two ranks sleep."""
    pids: list[int] = []
    assert process.stdout is not None
    for line in process.stdout:
        pids += [int(pid) for pid in re.findall(r"sleeping pid=(\d+)", line)]
        if len(pids) == 2:
            break
    assert len(alive(pids)) == 2
    return pids


def test_b24_c_without_a_wish_two_launches_take_two_free_ports(tmp_path):
    runs = [start("place", tmp_path / str(i), 1) for i in range(2)]
    ports = []
    for run in runs:
        code, out, _ = finish(run)
        assert code == 0
        ports += re.findall(r"port=(\d+)", out)
    assert len(set(ports)) == 2


@pytest.mark.parametrize("setting", ["--rdzv-endpoint", "MASTER_PORT"])
def test_b24_c_a_taken_port_is_refused_with_the_port_and_the_setting(tmp_path, setting):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        if setting == "MASTER_PORT":
            process = start("ok", tmp_path, 1, MASTER_PORT=port)
        else:
            process = start("ok", tmp_path, 1, "1", f"127.0.0.1:{port}")
        code, _, err = finish(process)
    assert code == 2
    assert port in err
    assert setting in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_b24_c_several_nodes_refuse_a_port_that_another_program_has(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, _, err = finish(start("ok", tmp_path, 1, "2", f"127.0.0.1:{port}"))
    assert code == 2
    assert f"port {port} on 127.0.0.1 is in use by another program" in err


def test_b24_c_the_port_that_was_asked_for_is_the_one_that_ranks_use(tmp_path):
    port = free_port()
    code, out, _ = finish(start("ok", tmp_path, 1, "1", f"127.0.0.1:{port}", OMP_NUM_THREADS="3"))
    assert code == 0
    assert re.findall(r"threads=(\d+)", out) == ["3"]
    assert re.findall(r"port=(\d+)", out) == [str(port)]


def test_two_nodes_start_again_together_and_both_name_the_first_cause(tmp_path):
    """They hold neighbouring ranks, meet where they were told, and go on with the same restart."""
    cause = "rank 2, step 3, phase forward: killed by SIGKILL"
    seen = set()
    errors = []
    for node in start_nodes("kill", tmp_path, "2", RESTARTS="1"):
        code, out, err = finish(node)
        assert code == 1
        found = re.findall(r"rank=(\d) world=4 local=(\d) node=(\d) port=(\d+)", out)
        assert len({port for *_, port in found}) == 1
        seen |= {(int(rank), int(where), int(local)) for rank, local, where, _ in found[:2]}
        assert len(found) == 4
        assert out.count("restart 1 of 1: ") == 1
        assert f"  1. {cause}" in err
        assert f"first cause: {cause}" in err.splitlines()[-2]
        assert "frame #" not in err
        errors.append(err)
    assert seen == {(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)}
    assert sum("another node failed" in err for err in errors) == 1


def test_fewer_nodes_that_the_layout_does_not_fit_end_the_run_with_what_goes_on_with_it(tmp_path):
    first, second = start_nodes("sleep", tmp_path, "1:2", RESTARTS="3", SILENT_SECONDS="2", NEEDS_RANKS="4")
    pids = sleepers(first) + sleepers(second)
    second.kill()
    second.wait()
    code, out, err = finish(first)
    assert code == 1
    assert "restart" not in out
    lines = err.splitlines()
    assert lines[:2] == [
        "restarts: 1 of 3, after",
        f"  1. no sign of life of the launcher on {socket.gethostname()} for 2 s",
    ]
    assert lines[2:] == [
        "last complete checkpoint: runs/x/step_00000002",
        "to go on: meshwright train x.yaml",
        "the layout does not fit 2 ranks",
    ]
    assert wait_until_gone(pids, 5) == []


def start_nodes(behaviour: str, tmp_path: Path, nodes: str, **env: str) -> list[subprocess.Popen]:
    """Two launchers; the first one serves the store."""
    port = free_port()
    endpoint = f"127.0.0.1:{port}"
    first = start(behaviour, tmp_path / "node0", 2, nodes, endpoint, **env)
    wait_for_server(port)
    return [first, start(behaviour, tmp_path / "node1", 2, nodes, endpoint, **env)]


def wait_for_server(port: int) -> None:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
