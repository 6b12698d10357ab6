"""Questions to the planner, in one line each."""

from typing import Any

from meshwright.plan.engines import engine
from meshwright.plan.job import Adapter
from meshwright.plan.question import Question, parse_fixed
from meshwright.plan.search import Answer, Candidate, search
from meshwright.spec.catalogue import device_cluster
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.presets import preset
from meshwright.spec.training import Batch, Precision, TrainSpec


def question(
    model: str | ModelSpec,
    devices: int,
    hardware: str,
    *,
    batch: int,
    seq: int,
    fix: str = "",
    framework: str = "meshwright",
    adapter: Adapter | None = None,
    per_node: int | None = None,
    amp: Any = "O2",
    **others: Any,
) -> Question:
    """A question about a public model on catalogue devices; bf16 with fp32 master weights unless said otherwise."""
    return Question(
        model=preset(model) if isinstance(model, str) else model,
        layout=Layout(mesh_order=engine(framework).mesh_order),
        train=TrainSpec(
            seq_length=seq,
            batch=Batch(micro_batch_size=1, micro_batch_num=batch, global_batch_size=batch),
            precision=Precision(amp_level=amp, dtype="float32" if amp == "O0" else "bfloat16"),
        ),
        cluster=device_cluster(hardware, devices, per_node),
        engine=engine(framework),
        fixed=parse_fixed([fix]),
        adapter=adapter,
        **others,
    )


def answer(model: str | ModelSpec, devices: int, hardware: str, **others: Any) -> Answer:
    """The answer to `question`."""
    return search(question(model, devices, hardware, **others))


def only(found: Answer) -> Candidate:
    """The one layout that a fixed question is about, whether it fits or not; sharded over all ranks."""
    everything = (*found.fitting, *found.tight, *found.over)
    (candidate,) = (one for one in everything if one.job.layout.zero_group_size is None)
    return candidate
