"""Training a tokenizer as a stage of preparation: on the documents that are not held out."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from meshwright.data.corpus import Tally
from meshwright.data.preparation.documents import Documents
from meshwright.data.preparation.shards import complete_file
from meshwright.data.progress import Progress
from meshwright.data.text import is_held_out
from meshwright.data.vocabulary.tokenizer import train_tokenizer

TRAINED = "tokenizer.json"


@dataclass(frozen=True)
class TokenizerTraining:
    """Trains a byte-level BPE and writes it to ``directory``."""

    documents: Documents
    vocab_size: int
    eval_fraction: float
    directory: Path

    def __call__(self, progress: Progress) -> None:
        """Train.

        Raises:
            DataError: an input cannot be read.
            OSError: the tokenizer cannot be written.
        """
        tokenizer = train_tokenizer(self._texts(progress), self.vocab_size)
        with complete_file(self.directory / TRAINED) as file:
            file.write(tokenizer.body)

    def _texts(self, progress: Progress) -> Iterator[str]:
        done = 0
        for shard in self.documents.shards:
            tally = Tally()
            for source in self.documents.reader(shard, tally):
                progress.update(done + tally.bytes_read)
                if not is_held_out(source.text.encode("utf-8"), self.eval_fraction):
                    yield source.text
            done += shard.size
