"""Work: seconds of one micro-batch in one direction through a layer or a stage, by term; messages included."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from meshwright.plan.engines import EngineName
from meshwright.plan.engines import engine as profile
from meshwright.plan.job import Job
from meshwright.plan.network import Network
from meshwright.plan.time.block import LayerCost, layer_cost
from meshwright.plan.time.collectives import Collective
from meshwright.plan.time.groups import Group, expert_group, group_of, message_seconds, slow_answer
from meshwright.plan.time.machine import Machine
from meshwright.plan.time.operators import Kind
from meshwright.plan.time.shapes import Shape
from meshwright.plan.time.traits import Traits, traits_of
from meshwright.spec.cluster import Cluster
from meshwright.spec.training import RecomputeKind

KINDS: dict[RecomputeKind, tuple[Kind, ...]] = {
    "elementwise": ("norm", "activation", "elementwise"),
    "attention": ("attention",),
    "matmul": ("matmul", "expert"),
    "communication": (),
}
MODULES: dict[str, tuple[Kind, ...]] = {
    "layernorm": ("norm",),
    "moe_act": ("activation",),
    "mla_up_proj": ("matmul",),
    "mlp": ("matmul", "activation"),
    "moe": ("expert", "activation"),
}


class Work(NamedTuple):
    """Seconds of one direction: what the device computes, its exposed messages, and what the host needs to launch."""

    compute: float = 0.0
    recompute: float = 0.0
    tensor: float = 0.0
    context: float = 0.0
    expert: float = 0.0
    launch: float = 0.0

    def plus(self, other: "Work", times: float = 1.0) -> "Work":
        """This work and ``times`` the other."""
        return Work(
            self.compute + times * other.compute,
            self.recompute + times * other.recompute,
            self.tensor + times * other.tensor,
            self.context + times * other.context,
            self.expert + times * other.expert,
            self.launch + times * other.launch,
        )

    @property
    def device(self) -> float:
        """Seconds that the device is busy or waits for messages."""
        return self.compute + self.recompute + self.tensor + self.context + self.expert

    @property
    def seconds(self) -> float:
        """Seconds of the pass: a host that launches slower than the device runs sets the pace."""
        return max(self.device, self.launch)


@dataclass(frozen=True, kw_only=True)
class Messages:
    """Messages inside one layer of one micro-batch on one axis.

    Attributes:
        size: bytes of one full message.
        forward / backward: how many in each direction.
        each: seconds of one.
        exposed_forward / exposed_backward: seconds that compute does not hide.
    """

    collective: Collective
    size: float
    group: Group
    forward: float
    backward: float
    each: float
    exposed_forward: float
    exposed_backward: float


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """One micro-batch through one layer, in both directions, and its messages by axis."""

    forward: Work
    backward: Work
    cost: LayerCost
    tensor: Messages | None
    context: Messages | None
    expert: Messages | None


def layer_time(job: Job, machine: Machine, shape: Shape, sparse: bool, whole: bool) -> LayerTime:
    """Time of a layer; ``whole`` recomputes all of it in backward."""
    select = () if whole else job.recompute.select
    again = ("all",) if whole else recomputed_kinds(select, shape.modules)
    return _layer_time(
        machine,
        job.network,
        shape,
        job.engine.name,
        sparse,
        again,
        whole or "communication" in select,
        job.cluster,
        (group_of(job, ("model",)), group_of(job, ("context",)), expert_group(job)),
    )


def recomputed_kinds(select: tuple[RecomputeKind, ...], modules: tuple[str, ...]) -> tuple[Kind, ...]:
    """Operators that selective recomputation runs again."""
    kinds = [kind for name in select for kind in KINDS[name]]
    kinds += [kind for name in modules for kind in MODULES.get(name, ())]
    return tuple(sorted(set(kinds)))


@lru_cache(maxsize=16384)
def _layer_time(
    machine: Machine,
    network: Network,
    shape: Shape,
    engine: EngineName,
    sparse: bool,
    again: tuple[Kind, ...],
    resend: bool,
    cluster: Cluster,
    groups: tuple[Group, Group, Group],
) -> LayerTime:
    traits = traits_of(engine, plain=shape.plain)
    cost = layer_cost(machine, network, shape, traits, sparse, again)
    on_tape = profile(engine).family == "fsdp"
    tensor = _tensor(machine, network, shape, traits, cost, resend, cluster, groups[0], on_tape)
    context = _context(machine, network, shape, cost, cluster, groups[1])
    expert = _expert(machine, network, shape, resend, cluster, groups[2]) if sparse else None
    found = (tensor, context, expert)
    sent = [sum(m.forward for m in found if m), sum(m.backward for m in found if m)]
    forward = [m.exposed_forward if m else 0.0 for m in found]
    backward = [m.exposed_backward if m else 0.0 for m in found]
    launch, message = machine.constants.launch, machine.constants.message
    if tensor is not None:
        message += machine.constants.stall * groups[0].ranks * slow_answer(cluster)
    return LayerTime(
        forward=Work(
            compute=cost.forward,
            tensor=forward[0],
            context=forward[1],
            expert=forward[2],
            launch=cost.forward_kernels * launch + sent[0] * message,
        ),
        backward=Work(
            compute=cost.backward,
            recompute=cost.recompute,
            tensor=backward[0],
            context=backward[1],
            expert=backward[2],
            launch=(cost.backward_kernels + cost.recompute_kernels) * launch + sent[1] * message,
        ),
        cost=cost,
        tensor=tensor,
        context=context,
        expert=expert,
    )


def _tensor(
    machine: Machine,
    network: Network,
    shape: Shape,
    traits: Traits,
    cost: LayerCost,
    resend: bool,
    cluster: Cluster,
    group: Group,
    on_tape: bool,
) -> Messages | None:
    """Megatron's f and g (arXiv:1909.08053) or, with sequence parallelism, g-bar (arXiv:2205.05198, figure 5).

    All-reduce after attention and after the feed-forward network; or a gather before and a reduce-scatter after each,
    the inputs gathered again in backward for the weight gradients. Where the engine overlaps, messages of a backward
    pass hide behind the products beside them: half of the backward work at most.

    Args:
        on_tape: autograd keeps gathered inputs as they are, and recomputation by torch.utils.checkpoint ends at the
            last tensor that backward needs, which is before the last message of a layer.
    """
    if shape.tensor == 1:
        return None
    size = shape.tokens * network.hidden_size * 2.0
    collective: Collective = "all_gather" if shape.sequence_parallel else "all_reduce"
    count = 4.0 if shape.sequence_parallel else 2.0
    each = message_seconds(collective, size, group, cluster, machine.constants.network)
    regathered = 2.0 if shape.sequence_parallel and not on_tape else 0.0
    again = (count - on_tape) if resend else 0.0
    backward = count + regathered
    exposed = backward * each
    if traits.tensor_overlap:
        hidden = machine.constants.overlap * cost.backward / 2
        exposed = max(count / 2 * each, exposed - hidden) if shape.sequence_parallel else max(0.0, exposed - hidden)
    return Messages(
        collective=collective,
        size=size,
        group=group,
        forward=count,
        backward=backward + again,
        each=each,
        exposed_forward=count * each,
        exposed_backward=exposed + again * each,
    )


def _context(
    machine: Machine, network: Network, shape: Shape, cost: LayerCost, cluster: Cluster, group: Group
) -> Messages | None:
    """Ring attention (arXiv:2310.01889): keys and values travel round the ring behind the attention of the last ones;
    backward carries their gradients as well."""
    if shape.context == 1:
        return None
    width = network.kv_width
    if network.latent is not None:
        width = network.num_heads * (network.latent.nope_head_dim + network.latent.rope_head_dim)
    size = shape.tokens * 2.0 * width / shape.tensor * 2.0
    each = message_seconds("send", size, group, cluster, machine.constants.network)
    steps = shape.context - 1.0
    return Messages(
        collective="send",
        size=size,
        group=group,
        forward=steps,
        backward=2 * steps,
        each=each,
        exposed_forward=max(each, steps * each - cost.attention_forward),
        exposed_backward=max(each, 2 * steps * each - cost.attention_backward),
    )


def _expert(
    machine: Machine, network: Network, shape: Shape, resend: bool, cluster: Cluster, group: Group
) -> Messages | None:
    """Dispatch and combine: one all-to-all each, in each direction."""
    if shape.expert == 1 or network.experts is None:
        return None
    copies = shape.tokens / shape.tensor * network.experts.experts_per_token
    size = copies * network.hidden_size * 2.0
    each = message_seconds("all_to_all", size, group, cluster, machine.constants.network)
    if shape.expert_tensor > 1:
        # The ranks that share out an expert gather each other's copies, and add up their results.
        gathered, few = size * shape.expert_tensor, Group(shape.expert_tensor, 1)
        each += message_seconds("all_gather", gathered, few, cluster, machine.constants.network)
    backward = 4.0 if resend else 2.0
    return Messages(
        collective="all_to_all",
        size=size,
        group=group,
        forward=2.0,
        backward=backward,
        each=each,
        exposed_forward=2 * each,
        exposed_backward=backward * each,
    )
