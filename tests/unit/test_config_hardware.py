"""Hardware files: what they change, and how mistakes in them are told."""

import pytest

from meshwright.config.errors import ConfigErrors
from meshwright.config.hardware import hardware_cluster, written_hardware
from meshwright.spec.catalogue import device_cluster
from meshwright.spec.cluster import GIB

FULL = """
device: h100
name: ours
memory_gib: 70
memory_bandwidth_gb_s: 3000
tflops: {bfloat16: 800}
devices_per_node: 4
host_memory_gib: 512
link: {name: bridge, bandwidth_gb_s: 300, latency_us: 5, switch_reduction: false}
network: {bandwidth_gb_s: 12.5, latency_us: 30, tree: false}
calibration:
  memory_bandwidth_gb_s: 2.6e3
  matmul:
    - {m: 4096, k: 4096, n: 4096, number_format: bfloat16, tflops: 612.5}
  collectives:
    - {collective: all_reduce, ranks: 4, nodes: 1, message_bytes: 1e6, seconds: 1e-4}
"""


@pytest.fixture
def write(tmp_path):
    def put(text):
        path = tmp_path / "ours.yaml"
        path.write_text(text)
        return str(path)

    return put


def test_every_key_replaces_a_number_of_the_catalogue(write):
    cluster = hardware_cluster(write(FULL), 16)
    assert (cluster.num_devices, cluster.devices_per_node, cluster.num_nodes) == (16, 4, 4)
    assert (cluster.device.name, cluster.device.family) == ("ours", "hopper")
    assert cluster.device.memory_bytes == 70 * GIB
    assert cluster.device.bandwidth == 3e12
    assert (cluster.device.peak("bfloat16"), cluster.device.peak("float8")) == (800e12, 1979e12)
    assert (cluster.intra.name, cluster.intra.bandwidth) == ("bridge", 300e9)
    assert cluster.intra.latency == pytest.approx(5e-6)
    assert not cluster.intra.switch_reduction
    assert (cluster.inter.bandwidth, cluster.inter.tree) == (12.5e9, False)
    assert cluster.host_memory_bytes == 512 * GIB
    assert cluster.calibration.memory_bandwidth == 2.6e12
    assert cluster.calibration.matmul[0].flops == 612.5e12
    assert cluster.calibration.collectives[0].message_bytes == 1_000_000


def test_a_file_with_a_device_alone_is_that_device(write):
    assert hardware_cluster(write("device: mi300x\n"), 8) == device_cluster("mi300x", 8)
    assert hardware_cluster("mi300x", 8) == device_cluster("mi300x", 8)


def test_the_command_line_wins_over_the_file(write):
    assert hardware_cluster(write(FULL), 16, devices_per_node=8).devices_per_node == 8


MISTAKES = [
    ("device: h100\nmemory: 80\n", ":2:", "memory: unknown key; did you mean memory_gib?"),
    ("device: h100\nmemory_gib: 0\n", ":2:", "memory_gib: must be more than 0, not 0"),
    ("device: h100\nmemory_gib: lots\n", ":2:", 'memory_gib: must be a number, not "lots"'),
    ("device: h100\ndevices_per_node: 2.5\n", ":2:", "devices_per_node: must be a whole number, not 2.5"),
    ("device: h100\nlink: fast\n", ":2:", 'link: must be a mapping of keys, not "fast"'),
    ("device: h100\nnetwork: {tree: yes}\n", ":2:", 'network.tree: must be true or false, not "yes"'),
    ("memory_gib: 80\n", ":1:", "device: is missing; a hardware file has device, name"),
    ("device: h1000\n", ":1:", "no device 'h1000' in the catalogue; did you mean h100"),
    (
        "device: h100\ncalibration:\n  matmul:\n    - {m: 1, k: 1, n: 1, number_format: bf16, tflops: 1}\n",
        ":4:",
        "calibration.matmul.0.number_format: must be float32, bfloat16, float16, float8 or float4",
    ),
    (
        "device: h100\ncalibration: {collectives: [{collective: all_reduce, ranks: 1}]}\n",
        ":2:",
        "calibration.collectives.0.ranks: must be 2 or more, not 1",
    ),
    ("- h100\n", "", "must be a mapping of keys; a hardware file has device"),
    ("device: h100\ndevice: a100\n", ":2:", "device"),
]


@pytest.mark.parametrize(("text", "line", "message"), MISTAKES, ids=[message[:40] for _, _, message in MISTAKES])
def test_mistakes_name_file_line_key_and_what_is_legal(write, text, line, message):
    path = write(text)
    with pytest.raises(ConfigErrors) as caught:
        hardware_cluster(path, 8)
    assert f"{path}{line}" in str(caught.value)
    assert message in str(caught.value)


def test_all_mistakes_come_at_once(write):
    with pytest.raises(ConfigErrors) as caught:
        hardware_cluster(write("device: h100\nnam: x\nmemory_gib: -1\nlink: {bandwidth: 3}\n"), 8)
    assert len(caught.value.errors) == 3


def test_a_missing_file_is_said_to_be_missing():
    with pytest.raises(ConfigErrors, match="no such file"):
        hardware_cluster("nowhere/ours.yaml", 8)


def test_what_is_written_reads_back(write):
    rate = {"m": 8, "k": 8, "n": 8, "number_format": "float32", "tflops": 0.004}
    one = {"collective": "send", "ranks": 2, "nodes": 1, "message_bytes": 65536, "seconds": 1e-05}
    values = {
        "device": "cpu",
        "name": "no",
        "memory_gib": 11.5,
        "calibration": {"memory_bandwidth_gb_s": 9.5, "matmul": [rate], "collectives": [one]},
    }
    cluster = hardware_cluster(write(written_hardware(values, "two\nlines")), 2)
    assert cluster.device.name == "no"
    assert cluster.calibration.matmul[0].flops == 4e9
    assert cluster.calibration.collectives[0].seconds == 1e-5
