"""Where the stages of a request have their results: in directories named by all that these depend on."""

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from meshwright.data.clean.shards import FORM
from meshwright.data.deduplicate.kept import kept_keys
from meshwright.data.preparation.request import Request
from meshwright.data.preparation.stage_keys import inputs_key, next_key
from meshwright.data.vocabulary.tokenizer import TextTokenizer

CLEAN_PACKAGES = ("spacy", "ftfy", "py3langid")
SIGNATURE_PACKAGES = ("spacy", "xxhash")
TOKEN_PACKAGES = ("tokenizers", "tiktoken", "sentencepiece")


@dataclass(frozen=True)
class Directories:
    """One for each stage, whether the request has that stage or not."""

    clean: Path
    signatures: Path
    duplicates: Path
    tokenizer: Path
    tokens: Path
    corpus: Path

    @classmethod
    def of(
        cls, request: Request, files: Sequence[Path], tokenizer: TextTokenizer | None, workplace: Path
    ) -> "Directories":
        """Name them.

        Args:
            files: the inputs.
            tokenizer: the one to use; None where one is to be trained.

        Raises:
            DataError: a corpus to deduplicate against has no signatures, or a file cannot be read.
        """
        about_tokens: list[object] = [request.eval_fraction, request.train_vocab_size, *map(str, request.inputs)]
        if tokenizer is not None:
            about_tokens += [tokenizer.fingerprint(), tokenizer.eos_token]
        before = [kept_keys(prefix, request.deduplication) for prefix in request.corpora_before]
        about_cleaning = [FORM, asdict(request.cleaning), request.examples]
        clean = next_key(inputs_key(files, request.text_key), about_cleaning, CLEAN_PACKAGES)
        signatures = next_key(clean, asdict(request.deduplication), SIGNATURE_PACKAGES)
        duplicates = next_key(signatures, [before, request.examples])
        tokens = next_key(duplicates, about_tokens, TOKEN_PACKAGES)
        # Writing uses up the tokens: whoever finds those of a request must find what has become of them, too.
        keys = (clean, signatures, duplicates, tokens, tokens, tokens)
        names = ("clean", "signatures", "duplicates", "tokenizer", "tokens", "corpus")
        return cls(*(workplace / f"{name}-{key}" for name, key in zip(names, keys, strict=True)))

    def all(self) -> tuple[Path, ...]:
        """All of them."""
        return astuple(self)
