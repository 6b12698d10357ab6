"""What counts as a duplicate."""

from collections.abc import Iterator
from dataclasses import dataclass

MOST_HASHES = 1024
# Each n-gram is put together and hashed as a whole: time grows with its words.
MOST_WORDS = 1000


@dataclass(frozen=True, kw_only=True)
class Deduplication:
    """Which repeated documents to drop. The defaults are FineWeb's (arXiv:2406.17557, section 3.4).

    Attributes:
        exact: drop documents whose text is that of an earlier one, character by character.
        near: drop documents that share most n-grams of words with an earlier one, by MinHash and
            locality-sensitive hashing.
        ngram: words per n-gram. A document of fewer words has none and is never a near duplicate.
        bands: groups of hash values; two documents are compared as equal where all values of one group are.
        rows: hash values per group.
    """

    exact: bool = False
    near: bool = False
    ngram: int = 5
    bands: int = 14
    rows: int = 8

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return self.exact or self.near

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """Each number that is out of range by its name, and what is wrong with it."""
        wrong = False
        for name, most in (("ngram", MOST_WORDS), ("bands", MOST_HASHES), ("rows", MOST_HASHES)):
            if not 1 <= (value := getattr(self, name)) <= most:
                wrong = True
                yield name, f"{value} must be from 1 to {most}"
        if not wrong and self.bands * self.rows > MOST_HASHES:
            yield "bands", f"{self.bands} of {self.rows} rows each must be at most {MOST_HASHES} hash values"

    def detection(self, similarity: float) -> float:
        """Chance that two documents are found: 1 - (1 - s^rows)^bands (Broder 1997; Leskovec et al., section 3.4).

        ``similarity`` s is the Jaccard similarity of their sets of n-grams, which is the chance that one hash value is
        the same in both.
        """
        return float(1 - (1 - similarity**self.rows) ** self.bands)

    @property
    def threshold(self) -> float:
        """The similarity about which the chance rises most steeply, (1 / bands)^(1 / rows)."""
        return float((1 / self.bands) ** (1 / self.rows))
