"""The launcher's parts in one process: causes, records, lines, the bar, endpoints, the environment."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwright.launch import position
from meshwright.launch.console import MetricsTail
from meshwright.launch.cores import usable_cores
from meshwright.launch.endpoint import Endpoint, choose_endpoint, parse_endpoint
from meshwright.launch.environment import threads_per_rank, under_launcher
from meshwright.launch.failure import Failure, is_communication_error, read_failure, record_failure, set_position
from meshwright.launch.logs import Follower
from meshwright.launch.nodes import LaunchError, Nodes, parse_nodes
from meshwright.launch.outcome import ExitReport, RankEnd, describe, first_cause
from meshwright.launch.restart import curable

GLOO = "[third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:34212: Connection reset by peer"


def failed(rank: int, when: float, error: str, *, communication: bool = False) -> RankEnd:
    failure = Failure(
        rank=rank,
        step=7,
        phase="backward",
        time=when,
        error=error,
        traceback=f"Traceback (most recent call last):\n{error}\n",
        communication=communication,
    )
    return RankEnd(rank=rank, exit_code=1, time=when, log=Path(f"rank{rank}.log"), failure=failure)


def died(rank: int, code: int, when: float) -> RankEnd:
    return RankEnd(rank=rank, exit_code=code, time=when, log=Path(f"rank{rank}.log"))


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        ([failed(0, 1.0, "RuntimeError: lost", communication=True), failed(1, 2.0, "ValueError: x")], 1),
        ([failed(0, 2.0, "ValueError: later"), failed(3, 1.0, "ValueError: earlier")], 3),
        ([died(0, -signal.SIGTERM, 1.0), failed(1, 2.0, "RuntimeError: lost", communication=True)], 1),
        ([failed(0, 1.5, "RuntimeError: lost", communication=True), died(2, -signal.SIGKILL, 2.0)], 2),
        ([failed(0, 1.5, "RuntimeError: timeout", communication=True), died(2, -signal.SIGKILL, 32.0)], 0),
        ([died(1, 7, 3.0), failed(0, 1.0, "RuntimeError: lost", communication=True)], 1),
    ],
    ids=["lost-peer", "earliest", "stopped", "oom-kill", "own-kill-of-a-hung-rank", "silent-exit"],
)
def test_the_first_cause_is_the_end_that_no_other_rank_explains(ends, cause):
    assert first_cause(ends)[0].rank == cause
    assert first_cause(ends[::-1])[0].rank == cause


def test_ranks_with_the_same_error_are_not_called_consequences():
    cause, others = first_cause([failed(rank, rank, "ValueError: x") for rank in range(3)])
    text = describe(ExitReport(code=1, log_dir=Path(), cause=cause, consequences=others))
    assert text.splitlines()[0] == "ranks 1, 2 failed with the same error"
    assert "consequence" not in text


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError(GLOO), True),
        (ConnectionResetError("x"), True),
        (RuntimeError("NCCL error: remote process exited, ncclRemoteError"), True),
        (ValueError("x"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_errors_that_only_say_a_peer_is_gone_are_recognised(error, lost):
    assert is_communication_error(error) is lost
    wrapped = RuntimeError("stage 1 failed")
    wrapped.__cause__ = error
    assert is_communication_error(wrapped) is lost


def test_a_record_round_trips_and_the_first_one_of_a_process_stands(tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    monkeypatch.setenv("MESHWRIGHT_LAUNCHER", "1")
    set_position(step=4, phase="optimizer")
    try:
        raise ValueError("first")
    except ValueError as exc:
        written = record_failure(exc, rank=5)
    record_failure(ValueError("second"), rank=5)
    set_position()
    assert read_failure(path) == written
    assert written.where() == "rank 5, step 4, phase optimizer"
    assert written.error == "ValueError: first"
    assert "in test_a_record_round_trips" in written.traceback
    torch_part = json.loads(path.read_text())["message"]
    assert torch_part["message"] == "ValueError: first"
    assert torch_part["extraInfo"]["timestamp"] == str(int(written.time))


def test_without_a_launcher_a_failure_is_told_on_stderr(monkeypatch, capsys):
    monkeypatch.delenv("MESHWRIGHT_LAUNCHER", raising=False)
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    record_failure(ValueError("x"), 1, 2, "data")
    assert capsys.readouterr().err.endswith("rank 1, step 2, phase data: ValueError: x\n")


def test_a_position_outlives_a_killed_process(tmp_path):
    path = position.create(tmp_path / "rank0.position")
    code = (
        "import os; from meshwright.launch.failure import set_position;"
        "set_position(3, 'backward'); set_position(12, 'a phase with a very long name'); os.kill(os.getpid(), 9)"
    )
    env = {**os.environ, position.FILE_VARIABLE: str(path)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == -9
    assert position.read(path) == (12, "a phase with a very long"[:24])
    assert position.read(tmp_path / "nothing") == (None, None)


def test_the_follower_gives_out_whole_lines_only(tmp_path):
    log = tmp_path / "rank3.log"
    follower = Follower(prefix=True)
    follower.add(3, log)
    assert follower.read() == []
    with log.open("w") as file:
        for piece, lines in (
            ("half ", []),
            ("line\nnext", ["[rank 3] half line"]),
            ("\n\n", ["[rank 3] next", "[rank 3] "]),
        ):
            file.write(piece)
            file.flush()
            assert follower.read() == lines
        file.write("10%\r20%\r30%\nno end")
    assert follower.read() == ["[rank 3] 30%"]
    assert follower.read(last=True) == ["[rank 3] no end"]
    assert follower.read(last=True) == []


def test_the_metrics_tail_skips_older_records_and_keeps_the_latest_values(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "train/loss": 9.0}\n')
    tail = MetricsTail(path)
    assert not tail.read()
    with path.open("a") as file:
        file.write('{"step": 2, "train/loss": 5.25, "speed/tokens_per_s": 41200}\n{"step": 3, "train/l')
    assert tail.read()
    assert tail.latest["step"] == 2
    assert tail.summary() == "loss 5.2500  tokens/s 41,200"
    with path.open("a") as file:
        file.write('oss": 5.0}\nnot json\n')
    assert tail.read()
    assert tail.summary() == "loss 5.0000  tokens/s 41,200"


BAR = """
import json, sys, time
from pathlib import Path
from meshwright.launch.console import Console
path = Path(sys.argv[1])
console = Console(path, 40)
assert console.draws_bar == (sys.argv[2] == "bar")
console.start()
console.line("a line [with brackets]")
record = {"step": 30, "train/loss": 3.5, "train/grad_norm": 0.5, "speed/tokens_per_s": 1234, "memory/peak_gib": 1.5}
path.write_text(json.dumps(record) + chr(10))
console.tick()
time.sleep(0.3)
console.stop()
"""


def test_a_terminal_shows_a_bar_with_the_metrics_and_a_pipe_plain_lines(tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", BAR, str(tmp_path / "metrics.jsonl")]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    subprocess.run([*command, "bar"], stdout=theirs, stderr=theirs, env=env, check=True, timeout=60)
    os.close(theirs)
    shown = read_all(ours)
    for text in ("a line [with brackets]", "30/40", "loss 3.5000", "grad norm 0.500", "tokens/s 1,234", "GiB 1.50"):
        assert text in shown
    (tmp_path / "metrics.jsonl").unlink()
    plain = subprocess.run([*command, "plain"], capture_output=True, text=True, check=True, timeout=60)
    assert plain.stdout == "a line [with brackets]\n"


def read_all(descriptor: int) -> str:
    chunks = []
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(descriptor)
    return b"".join(chunks).decode()


@pytest.mark.parametrize("text", ["node0", ":29400", "node0:", "node0:port", "node0:0", "node0:65536", "node0:-1"])
def test_an_endpoint_that_does_not_parse_is_refused_with_its_setting(text):
    with pytest.raises(LaunchError, match=r"--rdzv-endpoint .*expected HOST:PORT"):
        parse_endpoint(text, f"--rdzv-endpoint {text}")


def test_endpoints_parse_and_print():
    assert parse_endpoint("node0:29400", "x") == Endpoint("node0", 29400)
    assert parse_endpoint("[fe80::1]:29400", "x") == Endpoint("fe80::1", 29400)
    assert str(Endpoint("fe80::1", 29400)) == "[fe80::1]:29400"


def test_several_nodes_need_an_endpoint_and_one_does_not(monkeypatch):
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert choose_endpoint(None, Nodes()).port == 0
    with pytest.raises(LaunchError, match="--nnodes 2 needs --rdzv-endpoint"):
        choose_endpoint(None, Nodes(2, 2))
    with pytest.raises(LaunchError, match="cannot be resolved"):
        choose_endpoint("no-such-host.invalid:29400", Nodes(1, 2))


@pytest.mark.parametrize(
    ("end", "again"),
    [
        (died(0, -signal.SIGKILL, 1.0), True),
        (died(0, -signal.SIGABRT, 1.0), True),
        (died(0, 7, 1.0), False),
        (failed(0, 1.0, "RuntimeError: lost", communication=True), True),
        (failed(0, 1.0, "RuntimeError: CUDA error: uncorrectable ECC error encountered"), True),
        (failed(0, 1.0, "DataWorkerError: data worker 0 (pid 9) ended by signal SIGKILL at step 4"), True),
        (failed(0, 1.0, "torch.OutOfMemoryError: CUDA out of memory"), False),
        (failed(0, 1.0, "meshwright.train.nonfinite.NonFiniteError: step 3: the loss is nan"), False),
        (failed(0, 1.0, "CheckpointError: no space left on device"), False),
        (failed(0, 1.0, "ConfigErrors: train.yaml:3: unknown key"), False),
    ],
)
def test_a_restart_is_made_where_it_can_help(end, again):
    assert curable(ExitReport(code=1, log_dir=Path(), cause=end)) is again


def test_nodes_parse_and_print():
    assert (str(parse_nodes("2")), str(parse_nodes("1:4")), str(parse_nodes("3:3"))) == ("2", "1:4", "3")
    for text in ("0", "2:1", "0:2", "1:", "two"):
        with pytest.raises(LaunchError, match=f"--nnodes {text}: must be 1 or more, or MIN:MAX"):
            parse_nodes(text)


def test_ranks_share_the_cores_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads_per_rank(1) == usable_cores()
    assert threads_per_rank(10 * usable_cores()) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_per_rank(10 * usable_cores()) == 3


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 1),
        ("0::/of/the/host\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("4:cpu,cpuacct:/x\n1:name=systemd:/\n", {"cpu,cpuacct/x/cpu.cfs_quota_us": "100000\n"}, 1),
        ("4:cpu,cpuacct:/x\n1:name=systemd:/\n", {"cpu,cpuacct/x/cpu.cfs_quota_us": "-1\n"}, None),
        ("4:memory:/x\n", {"memory/x/cpu.max": "100000 100000\n"}, None),
        ("", {}, None),
    ],
)
def test_quotas_of_containers_narrow_the_cores(tmp_path, groups, files, cores):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.with_name("cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == (cores or len(os.sched_getaffinity(0)))


def test_torchrun_is_recognised(monkeypatch):
    for name in ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert not under_launcher()
    monkeypatch.setenv("RANK", "0")
    assert not under_launcher()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert under_launcher()
