"""The stages of a request: clean, train a tokenizer, tokenize, write, finish."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from meshwright.data.clean.shards import CLEAN_COUNTS, CLEAN_PACKAGES, TEXT_KEY, ShardCleaner, text_path
from meshwright.data.documents import Documents, Reader, rewritten
from meshwright.data.encode import Encoder
from meshwright.data.finish_stage import FINISHED, Finishing
from meshwright.data.indexed import dtype_for_vocab
from meshwright.data.request import Request
from meshwright.data.shards import plan_shards
from meshwright.data.stage_keys import inputs_key, next_key
from meshwright.data.stages import ShardStage, SoleStage, Stage
from meshwright.data.tokenize_stage import TOKEN_COUNTS, ShardTokenizer, TokenCounts
from meshwright.data.tokenizer import EOS_TOKEN, TextTokenizer
from meshwright.data.train_stage import TRAINED, TokenizerTraining
from meshwright.data.write_stage import WRITTEN, ShardWriter, shard_starts


class Pipeline:
    """The stages of a request, and the directories of the workplace where they have their results.

    Attributes:
        directories: all of them.
        corpus: path prefix of the files of the corpus before they get their final names.
    """

    def __init__(
        self, request: Request, files: Sequence[Path], tokenizer: TextTokenizer | None, workplace: Path
    ) -> None:
        """Name the directories.

        Args:
            files: the inputs.
            tokenizer: the one to use; None trains one.
        """
        self._request, self._files, self._given = request, files, tokenizer
        key = inputs_key(files, request.text_key)
        key = next_key(key, [asdict(request.cleaning), request.examples], CLEAN_PACKAGES) if request.cleaning else key
        self._clean = workplace / f"clean-{key}"
        about: list[object] = [request.eval_fraction, request.train_vocab_size]
        about += [tokenizer.fingerprint(), tokenizer.eos_token] if tokenizer else []
        key = next_key(key, about, ["tokenizers"])
        self._tokenizer, self._tokens = workplace / f"tokenizer-{key}", workplace / f"tokens-{key}"
        key = next_key(key, [[str(item) for item in request.inputs], request.examples])
        self.corpus = workplace / f"corpus-{key}" / "corpus"
        self.directories = (self._clean, self._tokenizer, self._tokens, self.corpus.parent)

    def finished_files(self) -> list[str] | None:
        """Suffixes of the files of the corpus, or None where not all stages are finished."""
        path = self.corpus.with_name(FINISHED)
        return list(json.loads(path.read_text("utf-8"))) if path.exists() else None

    def stages(self) -> Iterator[Stage]:
        """Each stage in turn; ask for the next one only when it is finished."""
        request = self._request
        documents = Documents(plan_shards(self._files), Reader(request.text_key))
        if request.cleaning:
            cleaner = ShardCleaner(request.cleaning, request.text_key, self._clean, request.examples)
            yield ShardStage("cleaning", self._clean, CLEAN_COUNTS, documents.shards, cleaner)
            paths = [text_path(self._clean, shard) for shard in documents.shards]
            documents = rewritten(documents.shards, paths, TEXT_KEY)
        if request.train_vocab_size is not None:
            training = TokenizerTraining(documents, request.train_vocab_size, request.eval_fraction, self._tokenizer)
            yield SoleStage("training the tokenizer", self._tokenizer, TRAINED, training)
        yield from self._token_stages(documents, self._given or self._trained())

    def _trained(self) -> TextTokenizer:
        return TextTokenizer((self._tokenizer / TRAINED).read_bytes(), EOS_TOKEN)

    def _token_stages(self, documents: Documents, tokenizer: TextTokenizer) -> Iterator[Stage]:
        request, size = self._request, tokenizer.vocab_size
        dtype, encoder = dtype_for_vocab(size), Encoder(tokenizer, request.eval_fraction)
        shard_tokenizer = ShardTokenizer(documents.reader, encoder, size, dtype, self._tokens)
        yield ShardStage("tokenizing", self._tokens, TOKEN_COUNTS, documents.shards, shard_tokenizer)
        counts = [TokenCounts.load(self._tokens, shard) for shard in documents.shards]
        sizes = [sum(split.tokens for split in shard.splits) * dtype.itemsize for shard in counts]
        shards = [replace(shard, size=size) for shard, size in zip(documents.shards, sizes, strict=True)]
        writer = ShardWriter(self._tokens, self.corpus, shard_starts(counts, dtype))
        yield ShardStage("writing", self.corpus.parent, WRITTEN, shards, writer, local=True)
        finishing = Finishing(
            request=request,
            files=len(self._files),
            shards=shards,
            clean=self._clean if request.cleaning else None,
            tokens=self._tokens,
            prefix=self.corpus,
            tokenizer=tokenizer,
            dtype=dtype,
        )
        yield SoleStage("finishing", self.corpus.parent, FINISHED, finishing, local=True)
