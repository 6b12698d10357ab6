"""The last stage of preparation: the files of a corpus that need all shards, ready to get their names."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshwright.data.clean.report import CleanCounts
from meshwright.data.clean.sample import estimate_tokens
from meshwright.data.clean.shards import clean_samples, total_clean_counts
from meshwright.data.deduplicate.find import Finder
from meshwright.data.deduplicate.kept import ABOUT_SUFFIX, KEYS_SUFFIX
from meshwright.data.deduplicate.report import DuplicateCounts
from meshwright.data.errors import DataError
from meshwright.data.indexed_format import bin_path
from meshwright.data.inputs.part import shown
from meshwright.data.preparation.directories import Directories
from meshwright.data.preparation.report import REPORT_SUFFIX, Prepared
from meshwright.data.preparation.request import Request
from meshwright.data.preparation.shards import Shard, complete_file, write_json
from meshwright.data.preparation.tokenize_stage import SPLITS, TokenCounts
from meshwright.data.preparation.write_stage import write_indexes
from meshwright.data.progress import Progress
from meshwright.data.record import EVAL_SUFFIX, TOKENIZER_SUFFIXES, CorpusRecord
from meshwright.data.vocabulary.beside import CONFIG_SUFFIX
from meshwright.data.vocabulary.tokenizer import TextTokenizer

# In the order in which they get their final names: a corpus is complete when its record is there.
# Loss masks and CONFIG_SUFFIX are never written here: listed, what an import left is not kept beside other tokens.
SPLIT_FILES = (".bin", ".mask", ".labels", ".idx")
OUTPUTS = (
    *TOKENIZER_SUFFIXES,
    CONFIG_SUFFIX,
    *SPLIT_FILES,
    *(f"{EVAL_SUFFIX}{name}" for name in SPLIT_FILES),
    KEYS_SUFFIX,
    ABOUT_SUFFIX,
    REPORT_SUFFIX,
    ".json",
)
FINISHED = "finished.json"


@dataclass(frozen=True)
class Finishing:
    """Writes what is missing beside the token files at ``prefix``, then ``FINISHED``: all files, suffix and bytes.

    Attributes:
        files: number of input files.
        notes: on inputs that were passed over.
        shards / counts: as they were tokenized, and what they add up to.
        directories: of the stages before.
        finder: of duplicates; None where nothing was deduplicated.
    """

    request: Request
    files: int
    notes: Sequence[str]
    shards: Sequence[Shard]
    counts: TokenCounts
    directories: Directories
    finder: Finder | None
    prefix: Path
    tokenizer: TextTokenizer
    dtype: np.dtype

    def check(self) -> None:
        """Refuse a corpus of which nothing is to be trained on, before it is written.

        Raises:
            DataError: no document is left for training.
        """
        if self.counts.splits[0].documents:
            return
        record = self._record(self._cleaned(), self._duplicates())
        reasons = [*record.dropped.items(), (f"held out (eval_fraction {record.eval_fraction})", record.eval.documents)]
        told = ", ".join(f"{count} {reason}" for reason, count in reasons if count)
        raise DataError(f"no document is left for training: {told or 'there is none in the inputs'}")

    def __call__(self, progress: Progress) -> None:
        """Write the files.

        Raises:
            DataError: a token file is not whole.
            OSError: a file cannot be written.
        """
        here, request = self.directories, self.request
        self._check_tokens()
        cleaned, duplicates = self._cleaned(), self._duplicates()
        record = self._record(cleaned, duplicates)
        write_indexes(here.tokens, self.prefix, self.shards, self.counts, self.dtype)
        with complete_file(self._path(f".tokenizer{self.tokenizer.suffix}")) as file:
            file.write(self.tokenizer.body)
        if self.finder:
            self.finder.save_keys(self.prefix)
        samples = clean_samples(here.clean, self.shards) if request.cleaning else ()
        report = Prepared(
            record=record,
            tally=cleaned.tally if cleaned else self.counts.tally,
            cleaning=request.cleaning,
            cleaned=cleaned,
            estimates=estimate_tokens(samples, self.tokenizer.encode),
            notes=self.notes,
            deduplication=request.deduplication if self.finder else None,
            against=[str(prefix) for prefix in request.corpora_before],
            duplicates=duplicates,
        )
        report.save(self._path(REPORT_SUFFIX))
        with complete_file(self._path(".json")) as file:
            file.write(record.content())
        sizes = {suffix: path.stat().st_size for suffix in OUTPUTS if (path := self._path(suffix)).exists()}
        write_json(self.prefix.parent / FINISHED, sizes)

    def _check_tokens(self) -> None:
        """Make sure that the token files are what all shards add up to."""
        for name, split in zip(SPLITS, self.counts.splits, strict=True):
            path, needed = bin_path(self._path(name)), split.tokens * self.dtype.itemsize
            found = path.stat().st_size if path.exists() else 0
            if found != needed:
                raise DataError(f"{path}: has {found} bytes, not {needed}; remove {path.parents[1]} and run again")

    def _cleaned(self) -> CleanCounts | None:
        request = self.request
        return total_clean_counts(self.directories.clean, self.shards, request.examples) if request.cleaning else None

    def _duplicates(self) -> DuplicateCounts | None:
        return DuplicateCounts.load(self.directories.duplicates) if self.finder else None

    def _path(self, suffix: str) -> Path:
        return Path(f"{self.prefix}{suffix}")

    def _record(self, cleaned: CleanCounts | None, duplicates: DuplicateCounts | None) -> CorpusRecord:
        train, held_out = self.counts.splits
        tally = cleaned.tally if cleaned else self.counts.tally
        dropped = {"empty": tally.empty, "too_long": tally.too_long, **(cleaned.by_rule() if cleaned else {})}
        if duplicates:
            dropped |= {"exact_duplicate": duplicates.exact.documents, "near_duplicate": duplicates.near.documents}
        return CorpusRecord(
            vocab_size=self.tokenizer.vocab_size,
            dtype=self.dtype.name,
            eos_id=self.tokenizer.eos_id,
            eos_token=self.tokenizer.eos_token,
            tokenizer_sha256=self.tokenizer.fingerprint(),
            eval_fraction=self.request.eval_fraction,
            train=train,
            eval=held_out,
            files=self.files,
            dropped=dropped,
            invalid_utf8=self.counts.tally.invalid_utf8,
            inputs=tuple(map(shown, self.request.inputs)),
        )
