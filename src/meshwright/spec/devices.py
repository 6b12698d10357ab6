"""The device table: data-sheet numbers of accelerators, and of the nodes they usually come in.

Conventions: rates are dense (without structured sparsity) and in TFLOP/s; bandwidths are decimal; a link's figure
is one direction, half of what data sheets print. Usable memory is what the driver gives to processes
(``cudaMemGetInfo`` total, as torch prints it in its out-of-memory message), in GiB; where no such report is
known, it is `USABLE_SHARE` of the marketed size, which is the H100's share.
"""

from dataclasses import dataclass

from meshwright.spec.cluster import DeviceFamily, Link

USABLE_SHARE = 0.989
"""79.1 of 80: the driver's total of an H100 80 GB over its marketed size."""

MICRO = 1e-6
SWITCH_STEP, PCIE_STEP, NETWORK_STEP = 4 * MICRO, 8 * MICRO, 10 * MICRO
"""Seconds per ring step. NVLink: slope over ranks of the A100 all-reduce of 1 MiB (vTrain, nccl-tests: 44 us on 2
devices, 93 on 8). Network: 64 to 512 H100 in the healthy node sets of the nanotron sweep, 10 to 12 us per step of
an all-gather. PCIe: twice NVLink, an estimate."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A catalogue entry: one device, and the node and network that it typically has.

    Attributes:
        driver_names: parts of what the driver calls it, the most telling first.
        memory_gib: usable, see the module's convention.
        bandwidth: device memory, TB/s.
        bf16 / fp16 / fp8 / fp4 / fp32: dense matrix-product rates, TFLOP/s; fp16 is bf16's where it is None.
        network: between nodes, per device.
        devices_per_node: devices that the intra-node link joins.
        host_gib: main memory of a node.
    """

    name: str
    title: str
    family: DeviceFamily
    memory_gib: float
    bandwidth: float
    fp32: float
    link: Link
    network: Link
    bf16: float | None = None
    fp16: float | None = None
    fp8: float | None = None
    fp4: float | None = None
    devices_per_node: int = 8
    host_gib: float = 2048
    aliases: tuple[str, ...] = ()
    driver_names: tuple[str, ...] = ()
    source: str


def _network(gigabits: float, name: str = "") -> Link:
    """A network by its Gbit/s per device."""
    return Link(name=name or f"{gigabits:g} Gb/s network", bandwidth=gigabits / 8 * 1e9, latency=NETWORK_STEP)


NVLINK2 = Link(name="NVLink2", bandwidth=150e9, latency=SWITCH_STEP)
NVLINK3 = Link(name="NVLink3", bandwidth=300e9, latency=SWITCH_STEP)
NVLINK3_CUT = Link(name="NVLink3 (400 GB/s)", bandwidth=200e9, latency=SWITCH_STEP)
NVLINK4 = Link(name="NVLink4", bandwidth=450e9, latency=SWITCH_STEP, switch_reduction=True)
NVLINK4_CUT = Link(name="NVLink4 (400 GB/s)", bandwidth=200e9, latency=SWITCH_STEP, switch_reduction=True)
NVLINK4_BRIDGE = Link(name="NVLink bridge", bandwidth=300e9, latency=SWITCH_STEP)
NVLINK5 = Link(name="NVLink5", bandwidth=900e9, latency=SWITCH_STEP, switch_reduction=True)
PCIE4 = Link(name="PCIe 4 x16", bandwidth=32e9, latency=PCIE_STEP)
PCIE5 = Link(name="PCIe 5 x16", bandwidth=64e9, latency=PCIE_STEP)
PCIE4_HOST = Link(name="PCIe 4 x16 through host memory", bandwidth=16e9, latency=2 * PCIE_STEP)
FABRIC3 = Link(name="Infinity Fabric", bandwidth=448e9, latency=SWITCH_STEP)
FABRIC4 = Link(name="Infinity Fabric", bandwidth=537.5e9, latency=SWITCH_STEP)
HCCS = Link(name="HCCS", bandwidth=196e9, latency=SWITCH_STEP)
HCCS_RING = Link(name="HCCS", bandwidth=45e9, latency=SWITCH_STEP)
UNIFIED_BUS = Link(name="UB", bandwidth=196e9, latency=SWITCH_STEP)
LOOPBACK = Link(name="host memory", bandwidth=4e9, latency=100 * MICRO)

ML_ENGINEERING = "stas00/ml-engineering compute/accelerator/README.md"
TORCHTITAN = "pytorch/torchtitan torchtitan/tools/utils.py get_peak_flops"
REPORTED = "usable memory as torch reports it"
FP4 = "dense fp4: NVIDIA Blackwell data sheets"

NVIDIA = (
    Hardware(
        name="v100-32g", title="V100 SXM2 32GB", family="volta", memory_gib=31.75, bandwidth=0.9,
        fp16=125, fp32=15.7, link=NVLINK2, network=_network(50), host_gib=1024,
        aliases=("v100",), driver_names=("V100",),
        source=f"NVIDIA V100 data sheet; no bf16; network of a DGX-1, 4 x 100 Gb/s per node; {REPORTED}",
    ),
    Hardware(
        name="a100-40g", title="A100 SXM 40GB", family="ampere", memory_gib=39.4, bandwidth=1.555,
        bf16=312, fp32=19.5, link=NVLINK3, network=_network(200), host_gib=1024,
        driver_names=("A100-SXM4-40GB",), source=f"{ML_ENGINEERING}; 200 Gb/s HDR per device (DGX); {REPORTED}",
    ),
    Hardware(
        name="a100-80g", title="A100 SXM 80GB", family="ampere", memory_gib=79.15, bandwidth=2.039,
        bf16=312, fp32=19.5, link=NVLINK3, network=_network(200),
        aliases=("a100", "a100-sxm-80g"), driver_names=("A100-SXM4-80GB",),
        source=f"{ML_ENGINEERING}; 200 Gb/s HDR per device (Selene); {REPORTED}",
    ),
    Hardware(
        name="a100-pcie-80g", title="A100 PCIe 80GB", family="ampere", memory_gib=79.15, bandwidth=1.935,
        bf16=312, fp32=19.5, link=PCIE4, network=_network(100), host_gib=1024,
        driver_names=("A100 80GB PCIe", "A100"), source=f"{ML_ENGINEERING}; 300 W; network is an estimate",
    ),
    Hardware(
        name="a800-80g", title="A800 SXM 80GB", family="ampere", memory_gib=79.15, bandwidth=2.039,
        bf16=312, fp32=19.5, link=NVLINK3_CUT, network=_network(200),
        aliases=("a800",), driver_names=("A800",), source=f"{ML_ENGINEERING}; MindSpeed-LLM FLOPs table",
    ),
    Hardware(
        name="h100-80g", title="H100 SXM 80GB", family="hopper", memory_gib=79.1, bandwidth=3.35,
        bf16=989, fp8=1979, fp32=67, link=NVLINK4, network=_network(400),
        aliases=("h100", "h100-sxm-80g"), driver_names=("H100 80GB HBM3", "H100"),
        source=f"{ML_ENGINEERING}; 400 Gb/s per device (DGX H100); {REPORTED}",
    ),
    Hardware(
        name="h100-96g", title="H100 SXM 96GB HBM2e, 500 W", family="hopper", memory_gib=95.0, bandwidth=2.4,
        bf16=989, fp8=1979, fp32=67, link=NVLINK4, network=_network(400),
        source="torchtitan benchmarks/llama3_h100_202412_torchtitan.md (2.4 TB/s, 500 W limit)",
    ),
    Hardware(
        name="h100-pcie-80g", title="H100 PCIe 80GB", family="hopper", memory_gib=79.1, bandwidth=2.0,
        bf16=756, fp8=1513, fp32=51, link=PCIE5, network=_network(100), host_gib=1024,
        driver_names=("H100 PCIe",), source=f"{ML_ENGINEERING}; {TORCHTITAN}; network is an estimate",
    ),
    Hardware(
        name="h100-nvl-94g", title="H100 NVL 94GB", family="hopper", memory_gib=93.1, bandwidth=3.9,
        bf16=835, fp8=1671, fp32=60, link=NVLINK4_BRIDGE, network=_network(100), devices_per_node=2, host_gib=1024,
        aliases=("h100-nvl",), driver_names=("H100 NVL",),
        source=f"{TORCHTITAN}; bridged in pairs; network is an estimate",
    ),
    Hardware(
        name="h800-80g", title="H800 SXM 80GB", family="hopper", memory_gib=79.1, bandwidth=3.35,
        bf16=989, fp8=1979, fp32=67, link=NVLINK4_CUT, network=_network(400),
        aliases=("h800",), driver_names=("H800",), source="MindSpeed-LLM FLOPs table; arXiv:2412.19437 (8 x 400 Gb/s)",
    ),
    Hardware(
        name="h20-96g", title="H20 96GB", family="hopper", memory_gib=95.1, bandwidth=4.0,
        bf16=148, fp8=296, fp32=44, link=NVLINK4, network=_network(400),
        aliases=("h20",), driver_names=("H20",), source=f"{TORCHTITAN}; MindSpeed-LLM FLOPs table",
    ),
    Hardware(
        name="h200-141g", title="H200 SXM 141GB", family="hopper", memory_gib=139.8, bandwidth=4.8,
        bf16=989, fp8=1979, fp32=67, link=NVLINK4, network=_network(400),
        aliases=("h200",), driver_names=("H200",), source=f"{ML_ENGINEERING}; {REPORTED}",
    ),
    Hardware(
        name="b200", title="B200 SXM 180GB", family="blackwell", memory_gib=178.35, bandwidth=8.0,
        bf16=2250, fp8=4500, fp4=9000, fp32=75, link=NVLINK5, network=_network(400),
        aliases=("b200-180g",), driver_names=("B200",),
        source=f"{ML_ENGINEERING}; {TORCHTITAN}; 400 Gb/s ConnectX-7 per device; {REPORTED}; {FP4}",
    ),
    Hardware(
        name="gb200", title="GB200 NVL72", family="blackwell", memory_gib=184.3, bandwidth=8.0,
        bf16=2450, fp8=4900, fp4=10000, fp32=80, link=NVLINK5, network=_network(400), devices_per_node=72,
        host_gib=17280,
        aliases=("gb200-186g",), driver_names=("GB200",),
        source=f"NVIDIA/dgxc-benchmarking READMEs (2450/4900); nodes are NVLink domains of 72 devices; {FP4}",
    ),
    Hardware(
        name="b300", title="B300 SXM 288GB", family="blackwell", memory_gib=268.0, bandwidth=8.0,
        bf16=2250, fp8=4500, fp4=13500, fp32=75, link=NVLINK5, network=_network(800),
        driver_names=("B300",), source=f"{TORCHTITAN}; nvidia-smi shows 275040 MiB of the marketed 288 GB; {FP4}",
    ),
    Hardware(
        name="gb300", title="GB300 NVL72", family="blackwell", memory_gib=276.0, bandwidth=8.0,
        bf16=2500, fp8=5000, fp4=15000, fp32=80, link=NVLINK5, network=_network(800), devices_per_node=72,
        host_gib=17280,
        driver_names=("GB300",), source=f"{TORCHTITAN}; nodes are NVLink domains of 72 devices; {FP4}",
    ),
    Hardware(
        name="a10g", title="A10G 24GB", family="ampere", memory_gib=22.0, bandwidth=0.6,
        bf16=70, fp32=31, link=PCIE4_HOST, network=_network(12.5), devices_per_node=4, host_gib=192,
        aliases=("a10g-24g",), driver_names=("A10G",), source="AWS g5.12xlarge: 4 devices, 40 Gb/s; NVIDIA A10G brief",
    ),
    Hardware(
        name="l40", title="L40 48GB", family="ada", memory_gib=44.4, bandwidth=0.864,
        bf16=181, fp8=362, fp32=90.5, link=PCIE4, network=_network(50), host_gib=1024,
        aliases=("l40-48g",), driver_names=("L40",), source="MindSpeed-LLM FLOPs table; network is an estimate",
    ),
    Hardware(
        name="l40s", title="L40S 48GB", family="ada", memory_gib=44.4, bandwidth=0.864,
        bf16=362, fp8=733, fp32=91.6, link=PCIE4, network=_network(50), host_gib=1024,
        aliases=("l40s-48g",), driver_names=("L40S",), source=f"{ML_ENGINEERING}; network is an estimate",
    ),
    Hardware(
        name="rtx-3090", title="RTX 3090 24GB", family="ampere", memory_gib=23.69, bandwidth=0.936,
        bf16=71, fp32=35.6, link=PCIE4_HOST, network=_network(1.25), host_gib=256,
        aliases=("3090",), driver_names=("RTX 3090",),
        source="NVIDIA GA102 white paper; peer access not assumed; 10 Gb/s Ethernet per node assumed",
    ),
    Hardware(
        name="rtx-4090", title="RTX 4090 24GB", family="ada", memory_gib=23.65, bandwidth=1.008,
        bf16=165.2, fp8=330.3, fp32=82.6, link=PCIE4_HOST, network=_network(1.25), host_gib=256,
        aliases=("4090", "rtx-4090-24g"), driver_names=("RTX 4090",),
        source=f"NVIDIA Ada white paper, fp32 accumulation; no peer access; 10 Gb/s Ethernet assumed; {REPORTED}",
    ),
    Hardware(
        name="rtx-a6000", title="RTX A6000 48GB", family="ampere", memory_gib=47.5, bandwidth=0.768,
        bf16=154.8, fp32=38.7, link=PCIE4, network=_network(12.5), host_gib=512,
        aliases=("a6000",), driver_names=("RTX A6000",), source=f"{TORCHTITAN}; NVLink bridges pairs only; not counted",
    ),
)  # fmt: skip

OTHERS = (
    Hardware(
        name="mi300x", title="MI300X 192GB", family="cdna3", memory_gib=191.98, bandwidth=5.3,
        bf16=1307, fp8=2615, fp32=163.4, link=FABRIC3, network=_network(400),
        aliases=("mi300x-192g",), driver_names=("MI300X",), source=f"{ML_ENGINEERING}; 8 x 400 Gb/s per node",
    ),
    Hardware(
        name="mi355x", title="MI355X 288GB", family="cdna4", memory_gib=287.9, bandwidth=8.0,
        bf16=2500, fp8=5000, fp32=157.3, link=FABRIC4, network=_network(400),
        aliases=("mi355x-288g",), driver_names=("MI355X",), source=f"{TORCHTITAN}; network as of MI300X nodes",
    ),
    Hardware(
        name="ascend-910a-32g", title="Ascend 910A 32GB", family="ascend", memory_gib=32 * USABLE_SHARE, bandwidth=1.2,
        fp16=256, fp32=16, link=HCCS_RING, network=_network(100), host_gib=768,
        aliases=("ascend-910", "ascend-910a", "910a"), driver_names=("Ascend910A", "Ascend910Pro"),
        source="public papers on Ascend 910; no bf16; HCCS rings of 4; fp32 rate is an estimate (vector units)",
    ),
    Hardware(
        name="ascend-910b-64g", title="Ascend 910B 64GB (Atlas 800T A2)", family="ascend", memory_gib=60.97,
        bandwidth=1.6, bf16=313, fp32=75, link=HCCS, network=_network(200), host_gib=1536,
        aliases=("ascend-910b", "910b"), driver_names=("Ascend910B",),
        source="FlagPerf README (313, bin B3; other bins reach 376); 61.0 GiB: vllm-project/vllm-ascend issue 19",
    ),
    Hardware(
        name="ascend-910c-64g", title="Ascend 910C, one die of two", family="ascend", memory_gib=61.27,
        bandwidth=1.6, bf16=376, fp32=90, link=UNIFIED_BUS, network=_network(200), devices_per_node=16, host_gib=3072,
        aliases=("ascend-910c", "910c"), driver_names=("Ascend910_93",),
        source="arXiv:2506.12708 (376 per die, UB 392 GB/s per package); each die is a device of its own to software",
    ),
    Hardware(
        name="cpu", title="one CPU process", family="cpu", memory_gib=16, bandwidth=0.02,
        bf16=0.1, fp32=0.1, link=LOOPBACK, network=_network(1.25, "10 Gb/s Ethernet"), devices_per_node=8,
        host_gib=128, source="a few cores; measure yours: meshwright bench --calibrate",
    ),
)  # fmt: skip
