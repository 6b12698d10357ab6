"""How many planted near duplicates are found, beside theory: python deduplicate_curve.py [--pairs N]

Pairs of texts of 100 5-grams each, with a known Jaccard similarity; a pair is found where any band has an equal key.
"""

import argparse
import random

import corpora

from meshwright.data.deduplicate.near import NearKeys
from meshwright.data.deduplicate.settings import Deduplication

NGRAMS = 100
SIMILARITIES = (0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


def main() -> None:
    """Print a line for each similarity."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2000, metavar="N", help="pairs of each similarity (2000)")
    args = parser.parse_args()
    settings, rng = Deduplication(near=True), random.Random(corpora.SEED)
    keys = NearKeys(settings)
    for wanted in SIMILARITIES:
        common = round(NGRAMS * 2 * wanted / (1 + wanted))
        similarity = common / (2 * NGRAMS - common)
        for text in corpora.pairs(rng, args.pairs, ngrams=NGRAMS, common=common):
            keys.add(text)
        bands = keys.take()
        found = (bands[:, ::2] == bands[:, 1::2]).any(axis=0).mean()
        chance = settings.detection(similarity)
        deviation = (chance * (1 - chance) / args.pairs) ** 0.5
        print(f"| {similarity:.3f} | {chance:.2%} | {found:.2%} | {(found - chance) / deviation:+.1f} |")


if __name__ == "__main__":
    main()
