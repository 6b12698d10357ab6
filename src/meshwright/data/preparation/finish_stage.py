"""The last stage of preparation: the files of a corpus that need all shards, ready to get their names."""

import json
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
from meshwright.data.preparation.directories import Directories
from meshwright.data.preparation.report import REPORT_SUFFIX, Prepared
from meshwright.data.preparation.request import Request
from meshwright.data.preparation.shards import Shard, complete_file
from meshwright.data.preparation.tokenize_stage import TokenCounts
from meshwright.data.preparation.write_stage import write_indexes
from meshwright.data.progress import Progress
from meshwright.data.record import EVAL_SUFFIX, TOKENIZER_SUFFIXES, CorpusRecord
from meshwright.data.vocabulary.tokenizer import TextTokenizer

# In the order in which they get their final names: a corpus is complete when its record is there.
# Loss masks are never written here: listed, one that an import left is not kept beside other tokens.
SPLIT_FILES = (".bin", ".mask", ".labels", ".idx")
OUTPUTS = (
    *TOKENIZER_SUFFIXES,
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
    """Writes what is missing beside the token files at ``prefix``, then ``FINISHED``: the suffixes of all files.

    Attributes:
        files: number of input files.
        shards: as they were tokenized.
        directories: of the stages before.
        finder: of duplicates; None where nothing was deduplicated.
    """

    request: Request
    files: int
    shards: Sequence[Shard]
    directories: Directories
    finder: Finder | None
    prefix: Path
    tokenizer: TextTokenizer
    dtype: np.dtype

    def __call__(self, progress: Progress) -> None:
        """Write the files.

        Raises:
            DataError: no document is left for training.
            OSError: a file cannot be written.
        """
        here, request = self.directories, self.request
        counts = sum((TokenCounts.load(here.tokens, shard) for shard in self.shards), TokenCounts())
        cleaned = total_clean_counts(here.clean, self.shards, request.examples) if request.cleaning else None
        duplicates = DuplicateCounts.load(here.duplicates) if self.finder else None
        record = self._record(counts, cleaned, duplicates)
        _check(record)
        write_indexes(here.tokens, self.prefix, self.shards, counts, self.dtype)
        self._path(f".tokenizer{self.tokenizer.suffix}").write_bytes(self.tokenizer.body)
        if self.finder:
            self.finder.save_keys(self.prefix)
        samples = clean_samples(here.clean, self.shards) if request.cleaning else ()
        report = Prepared(
            record=record,
            tally=cleaned.tally if cleaned else counts.tally,
            cleaning=request.cleaning,
            cleaned=cleaned,
            estimates=estimate_tokens(samples, self.tokenizer.encode),
            deduplication=request.deduplication if self.finder else None,
            duplicates=duplicates,
        )
        report.save(self._path(REPORT_SUFFIX))
        record.save(self._path(".json"))
        with complete_file(self.prefix.parent / FINISHED) as file:
            file.write(json.dumps([suffix for suffix in OUTPUTS if self._path(suffix).exists()]).encode())

    def _path(self, suffix: str) -> Path:
        return Path(f"{self.prefix}{suffix}")

    def _record(
        self, counts: TokenCounts, cleaned: CleanCounts | None, duplicates: DuplicateCounts | None
    ) -> CorpusRecord:
        train, held_out = counts.splits
        tally = cleaned.tally if cleaned else counts.tally
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
            invalid_utf8=cleaned.invalid_utf8 if cleaned else counts.tally.invalid_utf8,
            inputs=tuple(str(item) for item in self.request.inputs),
        )


def _check(record: CorpusRecord) -> None:
    if not record.train.documents:
        reasons = ", ".join(f"{count} {reason}" for reason, count in record.dropped.items())
        raise DataError(
            f"no document is left for training: {reasons}, {record.eval.documents} held out "
            f"(eval_fraction {record.eval_fraction})"
        )
