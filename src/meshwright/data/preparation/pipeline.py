"""The stages of a request: clean, deduplicate, train a tokenizer, tokenize, write, finish."""

import functools
import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from meshwright.data.clean.shards import CLEAN_COUNTS, ShardCleaner, text_path
from meshwright.data.deduplicate.compare import PAIRS
from meshwright.data.deduplicate.find import Finder
from meshwright.data.deduplicate.kept import kept_keys
from meshwright.data.deduplicate.report import FOUND
from meshwright.data.deduplicate.sign import KEYS, Signer
from meshwright.data.errors import DataError
from meshwright.data.file_state import FileState
from meshwright.data.indexed_format import dtype_for_vocab
from meshwright.data.inputs.find import Found
from meshwright.data.preparation.directories import Directories
from meshwright.data.preparation.documents import Documents, Reader, rewritten
from meshwright.data.preparation.encode import Encoder
from meshwright.data.preparation.finish_stage import FINISHED, Finishing
from meshwright.data.preparation.input_groups import group_inputs
from meshwright.data.preparation.request import Request
from meshwright.data.preparation.shards import plan_shards
from meshwright.data.preparation.stages import ShardStage, SoleStage, Stage
from meshwright.data.preparation.tokenize_stage import TOKEN_COUNTS, ShardTokenizer, TokenCounts
from meshwright.data.preparation.train_stage import TRAINED, TokenizerTraining
from meshwright.data.preparation.write_stage import WRITTEN, ShardWriter, shard_starts
from meshwright.data.progress import Progress
from meshwright.data.vocabulary.tokenizer import EOS_TOKEN, TextTokenizer


class Pipeline:
    """The stages of a request.

    Attributes:
        directories: where they have their results.
        corpus: path prefix of the files of the corpus before they get their final names.
        notes: on inputs that were passed over.
    """

    def __init__(
        self, request: Request, found: Found, tokenizer: TextTokenizer | None, directories: Directories
    ) -> None:
        """Plan nothing yet.

        Args:
            found: the inputs.
            tokenizer: the one to use; None trains one.
        """
        self._request, self._files, self._given = request, found.files, tokenizer
        self.notes = found.notes
        self.directories = directories
        self.corpus = directories.corpus / "corpus"

    def finished_files(self) -> dict[str, int] | None:
        """Sizes of the files of the corpus by suffix, or None where not all stages are finished."""
        path = self.corpus.with_name(FINISHED)
        return dict(json.loads(path.read_text("utf-8"))) if path.exists() else None

    def stages(self) -> Iterator[Stage]:
        """Each stage in turn; ask for the next one only when it is finished."""
        request, finder = self._request, None
        documents = Documents(plan_shards(self._files), Reader(request.text_key))
        before = {prefix: kept_keys(prefix, request.deduplication) for prefix in request.corpora_before}
        # Else what is finished could be of other text than what is to be read.
        if self.directories != Directories.of(request, self._files, self._given, self.directories.corpus.parent):
            raise DataError("an input has changed since this command began; run it again")
        if request.cleaning:
            documents = yield from self._cleaning(documents)
        if request.deduplication:
            documents, finder = yield from self._deduplication(documents, before)
        tokenizer = self._given or (yield from self._training(documents, request.train_vocab_size or 0))
        yield from self._tokens(documents, finder, tokenizer)

    def _cleaning(self, documents: Documents) -> Generator[Stage, None, Documents]:
        request, here = self._request, self.directories
        cleaner = ShardCleaner(
            cleaning=request.cleaning,
            text_key=request.text_key,
            directory=here.clean,
            examples=request.examples,
            groups=group_inputs(self._files),
            shards=len(documents.shards),
        )
        yield ShardStage("cleaning", here.clean, CLEAN_COUNTS, documents.shards, cleaner)
        return rewritten(documents.shards, [text_path(here.clean, shard) for shard in documents.shards])

    def _deduplication(
        self, documents: Documents, before: Mapping[Path, FileState]
    ) -> Generator[Stage, None, tuple[Documents, Finder]]:
        request, here, shards = self._request, self.directories, documents.shards
        signer = Signer(request.deduplication, documents.reader, here.signatures)
        yield ShardStage("signing", here.signatures, KEYS, shards, signer)
        finder = Finder(request.deduplication, shards, here.signatures, here.duplicates, before)
        yield ShardStage("comparing", here.duplicates, PAIRS, finder.comparisons, finder.comparer)
        drop = functools.partial(_drop, finder, documents.reader, request.examples)
        yield SoleStage("finding duplicates", here.duplicates, FOUND, documents.size, drop)
        return documents.without(here.duplicates), finder

    def _training(self, documents: Documents, vocab_size: int) -> Generator[Stage, None, TextTokenizer]:
        here = self.directories
        training = TokenizerTraining(documents, vocab_size, self._request.eval_fraction, here.tokenizer)
        yield SoleStage("training the tokenizer", here.tokenizer, TRAINED, documents.size, training)
        return TextTokenizer((here.tokenizer / TRAINED).read_bytes(), EOS_TOKEN)

    def _tokens(self, documents: Documents, finder: Finder | None, tokenizer: TextTokenizer) -> Iterator[Stage]:
        request, here, size = self._request, self.directories, tokenizer.vocab_size
        dtype, encoder = dtype_for_vocab(size), Encoder(tokenizer, request.eval_fraction)
        shard_tokenizer = ShardTokenizer(documents.reader, encoder, size, dtype, here.tokens)
        yield ShardStage("tokenizing", here.tokens, TOKEN_COUNTS, documents.shards, shard_tokenizer)
        counts = [TokenCounts.load(here.tokens, shard) for shard in documents.shards]
        sizes = [sum(split.tokens for split in shard.splits) * dtype.itemsize for shard in counts]
        shards = [replace(shard, size=size) for shard, size in zip(documents.shards, sizes, strict=True)]
        finishing = Finishing(
            request=request,
            files=len(self._files),
            notes=self.notes,
            shards=shards,
            counts=sum(counts, TokenCounts()),
            directories=here,
            finder=finder,
            prefix=self.corpus,
            tokenizer=tokenizer,
            dtype=dtype,
        )
        finishing.check()
        writer = ShardWriter(here.tokens, self.corpus, shard_starts(counts, dtype))
        yield ShardStage("writing", here.corpus, WRITTEN, shards, writer, local=True)
        yield SoleStage("finishing", here.corpus, FINISHED, sum(sizes), finishing, local=True)


def _drop(finder: Finder, reader: Reader, examples: int, progress: Progress) -> None:
    finder.drop(reader, examples=examples)
