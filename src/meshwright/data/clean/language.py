"""Keep documents of chosen languages, as the model that comes with py3langid knows them."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.data.clean.document import Decision, Document
from meshwright.data.clean.rule import Rule, share
from meshwright.data.errors import DataError

# A guess does not get better with more text, only slower.
LOOK_AT = 10_000
SOURCE = "arXiv:2406.17557, 3.3"
UNSURE = "unsure"


@dataclass(frozen=True)
class Language:
    """Drops documents that are in none of ``languages``, or for which the model is not sure.

    FineWeb asks for the same probability (arXiv:2406.17557, section 3.3), though of another model.
    """

    identifier: Any
    languages: frozenset[str]
    min_probability: float = share(0.65)

    PREFIX: ClassVar[str] = "language"
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("unsure", "probability of the likeliest language", ("min_probability",), SOURCE),
        Rule("CODE", "the language is another, such as language.de", (), SOURCE),
    )

    def __call__(self, document: Document) -> Decision:
        """Keep the text as it is, or drop it."""
        language, probability = self.identifier.classify(document.text[:LOOK_AT])
        found = language if probability >= self.min_probability else UNSURE
        if found in self.languages:
            return Decision(document.text, language=found)
        return Decision(None, f"language.{found}", language=found)


def keep_languages(languages: Sequence[str]) -> Language:
    """The rule that keeps documents of ``languages`` (ISO 639 codes).

    Raises:
        DataError: py3langid is not installed, or a code is not one that it knows.
    """
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise DataError("the package `py3langid` is not installed: pip install 'meshwright[clean]'") from None
    identifier = _identifier(LanguageIdentifier, MODEL_FILE)
    known = set(identifier.labels)
    if unknown := [code for code in languages if code not in known]:
        raise DataError(f"language {unknown[0]!r} is not known; known are {', '.join(sorted(known))}")
    return Language(identifier, frozenset(languages))


@functools.cache
def _identifier(kind: Any, file: Any) -> Any:
    # Checks of a request and the cleaning itself ask for it, and unpacking its model is work.
    return kind.from_model_file(file, norm_probs=True)
