"""Text files to a training corpus: token files, held-out token files, tokenizer and record."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.data.clean.cleaner import NO_CLEANING, Cleaning
from meshwright.data.corpus import find_inputs
from meshwright.data.deduplicate.settings import Deduplication
from meshwright.data.errors import DataError, DataWorkerError
from meshwright.data.preparation.directories import Directories
from meshwright.data.preparation.finish_stage import OUTPUTS
from meshwright.data.preparation.kept import kept_work
from meshwright.data.preparation.outputs import check_end_stays, check_inputs_stay, check_writable
from meshwright.data.preparation.pipeline import Pipeline
from meshwright.data.preparation.request import NO_DEDUPLICATION, Request
from meshwright.data.preparation.stages import WHOLE, Task
from meshwright.data.preparation.workplace import commit, workplace, workplace_path
from meshwright.data.progress import tell
from meshwright.data.record import CorpusRecord, load_record
from meshwright.data.vocabulary.tokenizer import load_tokenizer


def prepare(
    inputs: Sequence[str | Path],
    output: str | Path,
    *,
    tokenizer: str | Path | None = None,
    train_vocab_size: int | None = None,
    suffixes: Sequence[str] = (),
    text_key: str = "text",
    tiktoken_encoding: str | None = None,
    eos_token: str | None = None,
    eval_fraction: float = 0.02,
    cleaning: Cleaning = NO_CLEANING,
    deduplication: Deduplication = NO_DEDUPLICATION,
    against: Sequence[str | Path] = (),
    examples: int = 3,
    workers: int = 0,
    overwrite: bool = False,
    show_progress: bool = False,
) -> CorpusRecord:
    """``prepare_corpus`` for the ``Request`` of these settings."""
    request = Request(
        inputs=inputs,
        output=Path(output),
        tokenizer=tokenizer,
        train_vocab_size=train_vocab_size,
        suffixes=suffixes,
        text_key=text_key,
        tiktoken_encoding=tiktoken_encoding,
        eos_token=eos_token,
        eval_fraction=eval_fraction,
        cleaning=cleaning,
        deduplication=deduplication,
        against=against,
        examples=examples,
    )
    return prepare_corpus(request, workers=workers, overwrite=overwrite, show_progress=show_progress)


def prepare_corpus(
    request: Request,
    *,
    workers: int = 0,
    overwrite: bool = False,
    show_progress: bool = False,
    seconds: dict[str, float] | None = None,
) -> CorpusRecord:
    """Write ``output``.bin/.idx, .eval.bin/.idx, .tokenizer.json or .model, .json and .report.json from text.

    The same request gives the same bytes, whatever the number of workers. All files get their names at the end,
    together; whatever ends the work before that, nothing is left behind but what the stages have finished, with which
    the same request goes on.

    Args:
        workers: processes; 0 works in this one.
        overwrite: replace an existing corpus of that name.
        seconds: gets the time that this call spent on each stage, by its title.

    Raises:
        DataError: something about the request or the inputs is wrong.
        DataWorkerError: a worker process ended.
        OSError: a file cannot be written. This and the one before have a note on what is kept.
    """
    job = _Job.of(request, workers, overwrite)
    with job.telling_what_is_kept(), workplace(request.prefix) as directory:
        job.check_output()
        if show_progress:
            for note in job.pipeline.notes:
                tell(f"note: {note}")
            job.warn_of_others(directory)
        if job.pipeline.finished_files() is None:
            for stage in job.pipeline.stages():
                started = time.perf_counter()
                stage.run(WHOLE, workers=workers, show_progress=show_progress)
                if seconds is not None:
                    seconds[stage.title] = time.perf_counter() - started
        finished = job.pipeline.finished_files()
        assert finished is not None
        commit(job.pipeline.corpus, request.prefix, OUTPUTS, finished)
    record = load_record(request.prefix)
    assert record is not None
    return record


@dataclass(frozen=True)
class TaskReport:
    """What a task has done.

    Attributes:
        stage: title of the stage that it worked on; empty where no stage is left for tasks.
        finished, shards: those of the stage that are finished by now, and all.
        following: title of the stage to run next by tasks, where this one is finished and there is one.
    """

    stage: str = ""
    finished: int = 0
    shards: int = 0
    following: str = ""


def prepare_task(
    request: Request, task: Task, *, workers: int = 0, overwrite: bool = False, show_progress: bool = False
) -> TaskReport:
    """Do a task's share of the first stage that is not finished; several tasks may run at once.

    When all tasks of a stage are done, the next call works on the next stage. ``prepare_corpus`` does the rest.

    Raises:
        DataError, DataWorkerError, OSError: as ``prepare_corpus``.
    """
    job = _Job.of(request, workers, overwrite)
    with job.telling_what_is_kept(), workplace(request.prefix, shared=True) as directory:
        job.check_output()
        if show_progress:
            job.warn_of_others(directory)
        stages = job.pipeline.stages()
        for stage in stages:
            finished, shards = stage.finished()
            if stage.local:
                break
            if finished == shards:
                continue
            stage.run(task, workers=workers, show_progress=show_progress)
            finished, shards = stage.finished()
            following = next(stages) if finished == shards else None
            title = following.title if following and not following.local else ""
            return TaskReport(stage.title, finished, shards, title)
    return TaskReport()


@dataclass(frozen=True)
class _Job:
    """A request that has been checked, with its stages."""

    request: Request
    overwrite: bool
    pipeline: Pipeline

    @classmethod
    def of(cls, request: Request, workers: int, overwrite: bool) -> "_Job":
        request.check()
        if workers < 0:
            raise DataError(f"workers {workers} must be at least 0")
        check_writable(request.prefix)
        found = find_inputs(request.inputs, request.suffixes)
        check_inputs_stay(request, found.files)
        tokenizer = None
        if request.tokenizer:
            tokenizer = load_tokenizer(
                request.tokenizer, eos_token=request.eos_token, tiktoken_encoding=request.tiktoken_encoding
            )
            check_end_stays(request, tokenizer)
        directories = Directories.of(request, found.files, tokenizer, workplace_path(request.prefix))
        job = cls(request, overwrite, Pipeline(request, found, tokenizer, directories))
        job.check_output()
        return job

    @contextlib.contextmanager
    def telling_what_is_kept(self) -> Iterator[None]:
        """Note it on what ends the block, where the same request can go on after that."""
        try:
            yield
        except (KeyboardInterrupt, DataWorkerError, OSError) as error:
            if kept := kept_work(self.pipeline.directories):
                error.add_note(kept)
            raise

    def check_output(self) -> None:
        """Refuse to replace a corpus that was not to be replaced, and what is no file."""
        finished = self.pipeline.finished_files() or {}
        for suffix in OUTPUTS:
            path = Path(f"{self.request.prefix}{suffix}")
            if path.is_dir():
                raise DataError(f"{path}: is a directory; choose another --output")
            # A run that was killed while it gave the files their names may have given this one its own.
            ours = suffix in finished and not Path(f"{self.pipeline.corpus}{suffix}").exists()
            if path.exists() and not (self.overwrite or ours):
                raise DataError(f"{path}: exists already; choose another --output, or replace it with --overwrite")

    def warn_of_others(self, workplace: Path) -> None:
        """Tell of finished work that this request cannot go on from."""
        others = [path for path in workplace.iterdir() if path.is_dir() and path not in self.pipeline.directories.all()]
        if others:
            names = ", ".join(sorted(path.name for path in others))
            tell(
                f"note: {workplace} has results of other inputs, settings or versions ({names}); they are not used, "
                "and removed when this corpus is complete"
            )
