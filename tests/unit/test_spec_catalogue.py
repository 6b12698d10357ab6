"""The device catalogue: numbers of data sheets, names, and clusters made of them."""

import runpy
from pathlib import Path

import pytest

from meshwright.spec.catalogue import HARDWARE, device, device_cluster, hardware, hardware_of_driver, peak_flops
from meshwright.spec.cluster import GIB

# Data sheets: marketed GB, TB/s, dense 16-bit TFLOP/s, GB/s of the fast link in both directions.
SHEETS = {
    "a100-40g": (40, 1.555, 312, 600),
    "a100-80g": (80, 2.039, 312, 600),
    "a100-pcie-80g": (80, 1.935, 312, 64),
    "a800-80g": (80, 2.039, 312, 400),
    "h100-80g": (80, 3.35, 989, 900),
    "h100-96g": (96, 2.4, 989, 900),
    "h100-pcie-80g": (80, 2.0, 756, 128),
    "h100-nvl-94g": (94, 3.9, 835, 600),
    "h800-80g": (80, 3.35, 989, 400),
    "h20-96g": (96, 4.0, 148, 900),
    "h200-141g": (141, 4.8, 989, 900),
    "b200": (180, 8.0, 2250, 1800),
    "gb200": (186, 8.0, 2450, 1800),
    "b300": (288, 8.0, 2250, 1800),
    "gb300": (288, 8.0, 2500, 1800),
    "l40s": (48, 0.864, 362, 64),
    "l40": (48, 0.864, 181, 64),
    "rtx-a6000": (48, 0.768, 154.8, 64),
    "mi300x": (192, 5.3, 1307, 896),
    "mi355x": (288, 8.0, 2500, 1075),
    "ascend-910a-32g": (32, 1.2, 256, 90),
    "ascend-910b-64g": (64, 1.6, 313, 392),
    "ascend-910c-64g": (64, 1.6, 376, 392),
}


@pytest.mark.parametrize("name", SHEETS)
def test_numbers_are_those_of_the_data_sheet(name):
    marketed, bandwidth, rate, both_ways = SHEETS[name]
    cluster = device_cluster(name, 8)
    assert cluster.device.bandwidth == bandwidth * 1e12
    assert cluster.device.peak("float16") == rate * 1e12
    assert cluster.intra.bandwidth == pytest.approx(both_ways / 2 * 1e9)
    # What processes get: the driver's share is up to 8 %, and no device has more than its memory chips.
    assert 0.92 * marketed <= cluster.device.memory_bytes / GIB <= marketed


def test_usable_memory_of_an_h100():
    assert device("h100").memory_bytes / GIB == pytest.approx(79.1)


def test_a_format_that_a_device_lacks_runs_at_the_next_wider_one():
    assert device("a100").peak("float8") == 312e12
    assert device("h100").peak("float8") == 1979e12
    assert device("v100").peak("bfloat16") == 125e12
    assert device("h100").peak("float32") < device("h100").peak("bfloat16")


def test_every_entry_makes_a_cluster_with_links_and_a_source():
    assert len(HARDWARE) >= 23
    assert len({entry.name for entry in HARDWARE}) == len(HARDWARE)
    for entry in HARDWARE:
        cluster = device_cluster(entry.name, 16)
        assert cluster.intra.bandwidth >= cluster.inter.bandwidth > 0, entry.name
        assert cluster.device.peak("float32") > 0, entry.name
        assert entry.source, entry.name


def test_aliases_lead_to_one_entry_each():
    aliases = [alias for entry in HARDWARE for alias in (entry.name, *entry.aliases)]
    assert len(aliases) == len(set(aliases))
    assert hardware("H100") is hardware("h100_80g") is hardware("h100-sxm-80g")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("h1000", "did you mean h100"), ("a100-80gb", "did you mean a100-80g"), ("groq-lpu-xyz", "there are")],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, hint):
    with pytest.raises(ValueError, match=hint):
        device_cluster(name, 8)


@pytest.mark.parametrize(("devices", "per_node"), [(0, None), (8, 0)])
def test_counts_below_one_are_refused(devices, per_node):
    with pytest.raises(ValueError, match="legal: 1 or more"):
        device_cluster("h100", devices, per_node)


def test_nodes_and_their_memory():
    cluster = device_cluster("h100", 20)
    assert (cluster.devices_per_node, cluster.num_nodes) == (8, 3)
    half = device_cluster("h100", 20, devices_per_node=4)
    assert half.num_nodes == 5
    assert half.host_memory_bytes == cluster.host_memory_bytes / 2
    assert device_cluster("gb200", 72).num_nodes == 1


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-80g"),
        ("NVIDIA H100 PCIe", "h100-pcie-80g"),
        ("NVIDIA H200", "h200-141g"),
        ("NVIDIA H20", "h20-96g"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla V100-SXM2-32GB", "v100-32g"),
    ],
)
def test_what_drivers_say_finds_the_entry(driver, name):
    entry = hardware_of_driver(driver)
    assert entry is not None
    assert entry.name == name


def test_peak_flops_is_the_16_bit_rate_or_unknown():
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("Tesla V100-SXM2-32GB") == 125e12
    assert peak_flops("cpu") is None


def test_the_page_of_the_catalogue_is_current():
    docs = Path(__file__).parents[2] / "docs"
    page = runpy.run_path(str(docs / "device_catalogue.py"))["page"]
    assert (docs / "devices.md").read_text(encoding="utf-8") == page(), "run: make docs"
