"""The training loop of one rank."""

import math
import time
import uuid
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from meshwright.checkpoint.background import Saved
from meshwright.checkpoint.store import load_rank_state, load_tensors
from meshwright.config.run import Run, config_log_lines, resolved_yaml
from meshwright.data.loader import Batch, build_eval_loader, build_loader
from meshwright.launch.agreement import agree
from meshwright.launch.failure import set_position
from meshwright.parallel.devices import DeviceKind, HostCopy, device_name
from meshwright.parallel.precision import Formats, formats
from meshwright.spec.catalogue import peak_flops
from meshwright.spec.schedule import learning_rate
from meshwright.train import checkpointing
from meshwright.train.build import build_state
from meshwright.train.checkpointing import Counters
from meshwright.train.folders import run_folder
from meshwright.train.inputs import Resume, Start, eval_dataset, find_start, total_steps, train_dataset
from meshwright.train.memory import RunMemory
from meshwright.train.metrics import JsonlSink, Sink, StepTime, TensorBoardSink, speed_meter, step_line
from meshwright.train.nonfinite import NonFiniteError, explain, locate
from meshwright.train.pretrained import pretrained_weights
from meshwright.train.profile import StepProfiler
from meshwright.train.record import write_record
from meshwright.train.saving import CheckpointWriter
from meshwright.train.source_loss import SourceLoss, source_line
from meshwright.train.start import data_lines, start_lines
from meshwright.train.step import TrainState, evaluate_batch, train_step
from meshwright.train.stopping import StopRequest, StopSignals

OVERFLOWS_IN_A_ROW = 20
NO_TOKENS, OVERFLOW = "no supervised tokens", "overflow"


@dataclass
class _Pending:
    """A step whose numbers are on their way to the host."""

    step: int
    numbers: HostCopy
    batch: Batch
    waited: float
    seconds: float


class Trainer:
    """Trains one run on one rank of an initialised process group.

    Args:
        run: what to train.
        kind: family of devices.
        device: this rank's device.
        signals: what this process caught of signals that ask to stop; by default none are.
        memory: what is told of memory; by default what the device's allocator counts.
    """

    def __init__(
        self,
        run: Run,
        *,
        kind: DeviceKind,
        device: torch.device,
        signals: StopSignals | None = None,
        memory: RunMemory | None = None,
    ) -> None:
        self.run, self.kind, self.device = run, kind, device
        self.memory = memory or RunMemory(run, kind, device)
        self.first = dist.get_rank() == 0
        self.folder = run_folder(run.config)
        self.data = train_dataset(run)
        self.held_out = eval_dataset(run)
        self.fingerprint = self.data.fingerprint()
        self.total_steps = total_steps(run, self.data)
        self.formats: Formats = formats(run.train.precision, kind)
        set_position(phase="build model")
        # A run that goes on has its weights in its checkpoint; where it once started from may be gone.
        resumes = find_start(run, self.fingerprint).resume is not None
        self.pretrained = None if resumes else pretrained_weights(run)
        self.state: TrainState = build_state(
            run.model,
            run.layout,
            run.train,
            kind=kind,
            device=device,
            chosen=self.formats,
            initial=self.pretrained.initial if self.pretrained else None,
        )
        self.memory.follow(self.state)
        self.source_loss = SourceLoss(self.state, self.data, run.train.batch.global_batch_size)
        self.counters = Counters()
        self.run_id = self._shared(uuid.uuid4().hex)
        self._overflows = 0
        self._meter = speed_meter(run, peak_flops(device_name(kind, device)))
        self._sinks: list[Sink] = []
        self._checkpoints = CheckpointWriter(run, self.state, self.folder.checkpoints, device, self.fingerprint)
        self._stop_request = StopRequest(signals or StopSignals(), self.folder.stop)

    def fit(self) -> bool:
        """Train to the end of the run, from the beginning or from the checkpoint that the config asks for.

        Returns whether the run was asked to stop before that, and did, with a checkpoint to go on from.
        """
        start = find_start(self.run, self.fingerprint)
        checkpoint = start.resume.path.name if start.resume else "none, a new run"
        held_out = self.held_out.fingerprint() if self.held_out else "none"
        agree({"data fingerprint": self.fingerprint, "held-out fingerprint": held_out, "checkpoint": checkpoint})
        if start.resume is not None:
            self._restore(start.resume)
        self._open_folder(start.resume)
        self._announce(start)
        try:
            if self.counters.step >= self.total_steps:
                self._say(f"nothing to do: the checkpoint stands at step {self.counters.step}/{self.total_steps}")
                return False
            stopped = self._loop()
            self._finish_saving()
            if stopped is not None:
                self._stop_request.fulfilled()
                self._say(f"stopped by {stopped} after step {self.counters.step}/{self.total_steps}, and saved")
            return stopped is not None
        except NonFiniteError:
            # Raised by all ranks together: a save of healthy weights that is under way can still be completed.
            self._finish_saving()
            raise
        finally:
            for sink in self._sinks:
                sink.close()

    def _loop(self) -> str | None:
        """Make the steps; returns what stopped them before the last one."""
        config, train = self.run.config, self.run.train
        first = self.counters.step + 1
        profiler = StepProfiler(config.monitor.profile_steps, self.folder.profile, dist.get_rank(), first_step=first)
        pending: _Pending | None = None
        with self._loader() as loader, profiler:
            for step in range(first, self.total_steps + 1):
                set_position(step, "data")
                self._tell_saved(self._checkpoints.finished())
                started = time.perf_counter()
                batch = self._to_device(next(loader))
                waited = time.perf_counter() - started
                set_position(step, "forward and backward")
                self.memory.begin_step(batch)
                outcome = train_step(self.state, batch, self._learning_rate(step))
                self.counters.step = step
                self.counters.tokens += train.tokens_per_step
                numbers = HostCopy(torch.cat((outcome.stacked(), self.source_loss.of_step(step, batch))))
                if pending is not None:
                    self._settle(pending)
                wish = self._stop_request.exchange()
                stopped = wish if step < self.total_steps else None
                boundary = stopped is not None or self._boundary(step)
                if boundary:
                    numbers.read()
                # Having read the step before, this one's dispatch takes as long as a step in steady state. At a
                # boundary nothing follows that would wait for this one: its own end counts.
                seconds = time.perf_counter() - started
                pending = _Pending(step=step, numbers=numbers, batch=batch, waited=waited, seconds=seconds)
                profiler.step(step)
                if boundary:
                    self._settle(pending)
                    pending = None
                    if stopped is not None:
                        self._stop_request.hear()
                        self.save()
                        return stopped
                    self._at_boundary(step)
        self._stop_request.hear()
        return None

    def _finish_saving(self) -> None:
        set_position(self.counters.step, "checkpoint")
        self._tell_saved(self._checkpoints.wait())

    def _learning_rate(self, step: int) -> float:
        train = self.run.train
        return learning_rate(step, optimizer=train.optimizer, schedule=train.schedule, total_steps=self.total_steps)

    def _boundary(self, step: int) -> bool:
        """Whether something after this step needs its numbers settled."""
        return self._saves_at(step) or self._evaluates_at(step)

    def _at_boundary(self, step: int) -> None:
        if self._evaluates_at(step):
            self.evaluate()
        if self._saves_at(step):
            self.save()

    def _saves_at(self, step: int) -> bool:
        return step == self.total_steps or step % self.run.config.checkpoint.save_checkpoint_steps == 0

    def _evaluates_at(self, step: int) -> bool:
        every = self.run.config.train.eval_steps
        if self.held_out is None:
            return False
        return step == self.total_steps or (every is not None and step % every == 0)

    def _settle(self, pending: _Pending) -> None:
        """Take in the numbers of a finished step: counters, metrics, and whether to go on."""
        loss, norm, supervised, skipped, scale, halted, *by_source = pending.numbers.read()
        if halted:
            finding = locate(self.state, pending.batch, pending.step)
            raise NonFiniteError(explain(finding, pending.step, loss, norm))
        unsupervised = supervised == 0
        overflow = bool(skipped) and not unsupervised
        self.counters.supervised_tokens += int(supervised)
        self.counters.unsupervised += int(unsupervised)
        self.counters.skipped += int(overflow)
        self._overflows = self._overflows + 1 if overflow else 0
        if self._overflows == OVERFLOWS_IN_A_ROW:
            raise NonFiniteError(
                f"step {pending.step}: {OVERFLOWS_IN_A_ROW} steps in a row overflowed; the loss scale is down to "
                f"{scale:g} and gradients are still not finite"
            )
        self._meter.count(StepTime(seconds=pending.seconds, waited=pending.waited, supervised=supervised))
        reason = NO_TOKENS if unsupervised else OVERFLOW if overflow else None
        self._report(pending.step, loss, norm, scale, by_source, skipped=reason)
        if line := self.memory.step_done(last=pending.step == self.total_steps):
            self._say(line)

    def _report(
        self, step: int, loss: float, norm: float, scale: float, by_source: list[float], *, skipped: str | None
    ) -> None:
        if not self.first:
            return
        train, counters = self.run.train, self.counters
        metrics: dict[str, float] = {
            "train/lr": self._learning_rate(step),
            "train/tokens": step * train.tokens_per_step,
            "train/supervised_tokens": counters.supervised_tokens,
        }
        if counters.unsupervised:
            metrics["train/unsupervised_steps"] = counters.unsupervised
        sources = self.source_loss.metrics(by_source)
        if skipped != NO_TOKENS:
            metrics |= {"train/loss": loss} | sources
        if skipped is None:
            metrics["train/grad_norm"] = norm
        if self.state.loss_scale.dynamic:
            metrics |= {"train/loss_scale": scale, "train/skipped_steps": counters.skipped}
        metrics |= self._meter.read(self.total_steps - step) | self.memory.metrics()
        self._write(step, metrics)
        note = f"  {skipped}: step skipped" if skipped else ""
        if note or step % self.run.config.monitor.log_steps == 0 or step in (1, self.total_steps):
            self._say(step_line(step, self.total_steps, metrics) + note)
            if sources:
                self._say(source_line(sources))

    def evaluate(self) -> None:
        """Report the mean token loss over the held-out data."""
        assert self.held_out is not None
        set_position(self.counters.step, "evaluation")
        self.state.model.eval()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        tokens = torch.zeros((), dtype=torch.float64, device=self.device)
        with build_eval_loader(
            self.held_out,
            global_batch_size=self.run.train.batch.global_batch_size,
            data_rank=self.state.mesh.zero_rank,
            data_parallel=self.run.layout.zero_ranks,
            timeout_s=self.run.config.dataset.timeout_s,
            max_batches=self.run.config.train.eval_batches,
        ) as loader:
            for batch in loader:
                part, count = evaluate_batch(self.state, self._to_device(batch))
                loss_sum += part
                tokens += count
        self.state.model.train()
        metrics = {"val/tokens": tokens.item()}
        if metrics["val/tokens"]:
            loss = (loss_sum / tokens).item()
            metrics |= {"val/loss": loss, "val/ppl": math.exp(min(loss, 700.0))}
        self._write(self.counters.step, metrics)
        note = "" if "val/loss" in metrics else f"  evaluation: {NO_TOKENS}"
        self._say(step_line(self.counters.step, self.total_steps, metrics) + note)

    def save(self) -> None:
        """Save this moment; in the background this returns before the checkpoint is complete."""
        set_position(self.counters.step, "checkpoint")
        result = self._checkpoints.save(self.counters, self.run_id)
        self._write(self.counters.step, {"checkpoint/stall_s": result.stall})
        self._tell_saved(result.saved)

    def _tell_saved(self, saved: Saved | None) -> None:
        if saved is not None:
            self._write(self.counters.step, {"checkpoint/save_s": saved.seconds})
            self._say(f"checkpoint: {saved.path}")

    def _restore(self, resume: Resume) -> None:
        set_position(phase="load checkpoint")
        load_tensors(resume.path, checkpointing.state_tensors(self.state))
        saved = resume.state
        self.counters = Counters(**saved["counters"])
        if resume.path.parent.resolve() == self.folder.checkpoints.resolve():
            self.run_id = saved["run_id"]
        same = checkpointing.same_ranks(saved, self.run.layout)
        states = load_rank_state(resume.path, dist.get_rank()) if same else None
        if states is not None:
            checkpointing.restore_random_state(states, self.device)

    def _open_folder(self, resume: Resume | None) -> None:
        if not self.first:
            return
        self.folder.root.mkdir(parents=True, exist_ok=True)
        self.folder.config.write_text(resolved_yaml(self.run), encoding="utf-8")
        write_record(
            self.folder.record,
            self.run,
            run_id=self.run_id,
            data_fingerprint=self.fingerprint,
            data=data_lines(self.run, self.data, self.total_steps),
            device=str(self.device),
            resumed=str(resume.path) if resume else None,
        )
        self._sinks.append(JsonlSink(self.folder.metrics))
        if self.run.config.monitor.tensorboard:
            self._sinks.append(TensorBoardSink(self.folder.tensorboard))

    def _announce(self, start: Start) -> None:
        for line in config_log_lines(self.run):
            self._say(line)
        for line in start_lines(self.run, self.formats, self.kind, self.data, self.total_steps):
            self._say(line)
        for line in start.passed_over:
            self._say(f"passed over {line}")
        resume = start.resume
        if resume is None:
            drawn = f"drawn from seed {self.run.train.seed}"
            self._say(f"weights: {self.pretrained.describe() if self.pretrained else drawn}")
            return
        note = ""
        if not checkpointing.same_ranks(resume.state, self.run.layout):
            note = f" (saved with layout {resume.state['layout']}; random numbers of dropout start anew)"
        self._say(f"resumed from {resume.path} at step {self.counters.step}{note}")

    def _loader(self) -> Any:
        config, train = self.run.config.dataset, self.run.train
        return build_loader(
            self.data,
            order=self.data.order(train.seed),
            first_step=self.counters.step,
            num_steps=self.total_steps - self.counters.step,
            global_batch_size=train.batch.global_batch_size,
            data_rank=self.state.mesh.zero_rank,
            data_parallel=self.run.layout.zero_ranks,
            num_parallel_workers=config.num_parallel_workers,
            prefetch_size=config.prefetch_size,
            timeout_s=config.timeout_s,
            pin_memory=self.device.type == "cuda",
        )

    def _to_device(self, batch: Batch) -> Batch:
        if self.device.type == "cpu":
            return batch
        return batch.map(lambda tensor: tensor.to(self.device, non_blocking=True))

    def _write(self, step: int, metrics: dict[str, float]) -> None:
        for sink in self._sinks:
            sink.write(step, metrics)

    def _shared(self, value: str) -> str:
        """Rank 0's value, on every rank."""
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def _say(self, line: str) -> None:
        if self.first:
            print(line, flush=True)
