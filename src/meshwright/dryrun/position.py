"""Where in the run each operator stands: step, phase, micro-batch and module.

Nothing of the trainer is changed for it. Modules are told by torch's module hooks; in backward the autograd node that
runs was numbered when its module ran forward. Phases are told by the calls that `train_step` makes.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from meshwright.dryrun.tape import Moment, Phase

_graph_task = torch._C._current_graph_task_id
_sequence_number = torch._C._autograd._get_sequence_nr
_NO_GRAPH = -1


class Position:
    """Follows one model through its steps."""

    def __init__(self) -> None:
        self._phase: Phase = "build"
        self._step = -1
        self._names: dict[nn.Module, str] = {}
        self._stack: list[str] = []
        # Parallel lists: from this sequence number on, autograd nodes belong to this module.
        self._numbers: list[int] = [0]
        self._modules: list[str] = [""]
        self._forward, self._backward = -1, -1
        self._graph = _NO_GRAPH
        self._turned = False  # the latest pass is a backward

    def follow(self, model: nn.Module) -> None:
        """Name the modules of a model by their paths."""
        self._names = {module: name for name, module in model.named_modules()}

    def begin_step(self) -> None:
        """A new optimizer step begins."""
        self._step += 1
        self._phase = "forward"
        self._forward = self._backward = -1
        self._graph = _NO_GRAPH
        self._turned = False
        # No autograd node outlives its step: what numbers belonged to would only grow.
        self._numbers, self._modules = [0], [self._top()]

    def within(self, phase: Phase, after: Phase, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call`` as a phase of its own, followed by another."""

        def called(*args: Any, **kwargs: Any) -> Any:
            self._phase = phase
            result = call(*args, **kwargs)
            self._phase = after
            return result

        return called

    def now(self, operator: str) -> Moment:
        """The moment at which an operator runs."""
        graph = _graph_task()
        if graph == _NO_GRAPH:
            return self._outside_backward(operator)
        if graph != self._graph:
            self._graph = graph
            self._backward += 1
            self._turned = True
        recomputing = bool(self._stack) or torch.is_grad_enabled()
        module = self._top() or self._module_of_node()
        return Moment(self._step, "backward", self._backward, module, operator, recomputing)

    def _outside_backward(self, operator: str) -> Moment:
        """What comes between two passes, such as the last reductions of a backward, belongs to the one before."""
        phase, micro_batch = self._phase, -1
        if phase == "forward":
            after_backward = self._turned and not self._stack
            phase, micro_batch = ("backward", self._backward) if after_backward else (phase, max(self._forward, 0))
        return Moment(self._step, phase, micro_batch, self._top(), operator, recomputing=False)

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Watch modules run."""
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _top(self) -> str:
        return self._stack[-1] if self._stack else ""

    def _enter(self, module: nn.Module, _args: Any) -> None:
        name = self._names.get(module, type(module).__name__)
        if name == "" and _graph_task() == _NO_GRAPH:
            self._forward += 1
            self._turned = False
        self._stack.append(name)
        self._note(name)

    def _leave(self, _module: nn.Module, _args: Any, _result: Any) -> None:
        self._stack.pop()
        self._note(self._top())

    def _note(self, name: str) -> None:
        number = _sequence_number()
        if number == self._numbers[-1]:
            self._modules[-1] = name
        else:
            self._numbers.append(number)
            self._modules.append(name)

    def _module_of_node(self) -> str:
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        return self._modules[bisect_right(self._numbers, node._sequence_nr()) - 1]
