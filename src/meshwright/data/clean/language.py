"""Keep documents of chosen languages, as the model that comes with py3langid knows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.data.clean.document import Decision, Document
from meshwright.data.errors import DataError

# A guess does not get better with more text, only slower.
LOOK_AT = 10_000


@dataclass(frozen=True)
class Language:
    """Drops documents that are in none of ``languages``, or for which the model is not sure.

    Attributes:
        min_probability: of the likeliest language. FineWeb asks for 0.65 (arXiv:2406.17557, section 3.3), though of
            another model.
    """

    identifier: Any
    languages: frozenset[str]
    min_probability: float = 0.65

    def __call__(self, document: Document) -> Decision:
        """Keep the text as it is, or drop it."""
        language, probability = self.identifier.classify(document.text[:LOOK_AT])
        if language in self.languages and probability >= self.min_probability:
            return Decision(document.text)
        return Decision(None, f"language.{language}" if probability >= self.min_probability else "language.unsure")


def keep_languages(languages: Sequence[str]) -> Language:
    """The rule that keeps documents of ``languages`` (ISO 639 codes).

    Raises:
        DataError: py3langid is not installed, or a code is not one that it knows.
    """
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise DataError("the package `py3langid` is not installed: pip install 'meshwright[clean]'") from None
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    known = set(identifier.labels)
    if unknown := [code for code in languages if code not in known]:
        raise DataError(f"language {unknown[0]!r} is not known; known are {', '.join(sorted(known))}")
    return Language(identifier, frozenset(languages))
