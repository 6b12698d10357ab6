"""The last stage of preparation: the files of a corpus that need all shards, ready to get their names."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from meshwright.data.clean.report import REPORT_SUFFIX, CleanCounts, save_report
from meshwright.data.clean.shards import total_clean_counts
from meshwright.data.errors import DataError
from meshwright.data.record import EVAL_SUFFIX, CorpusRecord
from meshwright.data.request import Request
from meshwright.data.shards import Shard, complete_file
from meshwright.data.tokenize_stage import TokenCounts
from meshwright.data.tokenizer import TextTokenizer
from meshwright.data.write_stage import write_indexes

# In the order in which they get their final names: a corpus is complete when its record is there.
OUTPUTS = (".tokenizer.json", ".bin", ".idx", f"{EVAL_SUFFIX}.bin", f"{EVAL_SUFFIX}.idx", REPORT_SUFFIX, ".json")
FINISHED = "finished.json"


@dataclass(frozen=True)
class Finishing:
    """Writes what is missing beside the token files at ``prefix``, then ``FINISHED``: the suffixes of all files.

    Attributes:
        files: number of input files.
        shards: as they were tokenized.
        clean, tokens: directories of the stages; clean is None where nothing was cleaned.
    """

    request: Request
    files: int
    shards: Sequence[Shard]
    clean: Path | None
    tokens: Path
    prefix: Path
    tokenizer: TextTokenizer
    dtype: np.dtype

    def __call__(self, show_progress: bool) -> None:
        """Write the files.

        Raises:
            DataError: no document is left for training.
            OSError: a file cannot be written.
        """
        counts = sum((TokenCounts.load(self.tokens, shard) for shard in self.shards), TokenCounts())
        cleaned = total_clean_counts(self.clean, self.shards, self.request.examples) if self.clean else None
        record = self._record(counts, cleaned)
        _check(record)
        write_indexes(self.tokens, self.prefix, self.shards, counts, self.dtype)
        self._path(".tokenizer.json").write_bytes(self.tokenizer.body)
        if cleaned is not None:
            kept_tokens = record.train.tokens + record.eval.tokens
            report = {**asdict(self.request.cleaning), **cleaned.as_json(), "kept_tokens": kept_tokens}
            save_report(self._path(REPORT_SUFFIX), report)
        record.save(self._path(".json"))
        with complete_file(self.prefix.parent / FINISHED) as file:
            file.write(json.dumps([suffix for suffix in OUTPUTS if self._path(suffix).exists()]).encode())

    def _path(self, suffix: str) -> Path:
        return Path(f"{self.prefix}{suffix}")

    def _record(self, counts: TokenCounts, cleaned: CleanCounts | None) -> CorpusRecord:
        train, held_out = counts.splits
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
            dropped={"empty": counts.empty} if cleaned is None else {"empty": cleaned.empty, **cleaned.by_rule()},
            invalid_utf8=counts.invalid_utf8 if cleaned is None else cleaned.invalid_utf8,
            inputs=tuple(str(item) for item in self.request.inputs),
        )


def _check(record: CorpusRecord) -> None:
    if not record.train.documents:
        reasons = ", ".join(f"{count} {reason}" for reason, count in record.dropped.items())
        raise DataError(
            f"no document is left for training: {reasons}, {record.eval.documents} held out "
            f"(eval_fraction {record.eval_fraction})"
        )
