"""Documents that datatrove's MinHash drops.

    PYTHON deduplicate_golden.py [TEXTS]

Prints the numbers of those of TEXTS, a list in JSON. Without, it writes tests/data/deduplicate/datatrove_VERSION.json
for the tests. PYTHON is an interpreter of an environment of its own (see deduplicate.py).
"""

import importlib.metadata
import json
import struct
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import corpora
from datatrove.data import Document
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.utils.text import simplify_text

DOCUMENTS = 400
ODD = [
    "Don't STOP: it's 3.5 km, 1,000,000 people & 12:30!",
    "\u00c9cole na\u00efve \u0130stanbul \u039f\u03a3 \u01c5 \ufb01ne Stra\u00dfe A\u030angstr\u00f6m \u1e69",
    "\u0663\u066b\u0661\u0664 \u0968\u0969 \uff11\uff12 1.2.3 4,5 x2y \u00b2 \u2167",
    "".join(map(chr, range(1, 0x100))),
    " ".join(map(chr, (*range(0x2000, 0x2070), *range(0x2230, 0x2240), *range(0x2390, 0x23A0), 0x2501, 0x25BA))),
    "".join(map(chr, (*range(0x3000, 0x3020), *range(0xFF00, 0xFF60)))),
    "e.g. U.S.A. a.m. gonna cannot I'll we've o'clock me@example.com https://example.com/a?b=c&d=e#f snake_case C++",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0627\u0644\u0633\u0644\u0627\u0645\u064f",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "a\u200bb a\xadb a\u0301\u0327 \u037e \u1fef \u2126 \u212b tab\tnew\nline\r\n\x0b\x0c\x1c\x85end",
]


def main() -> None:
    """Print the documents dropped of a file, or write those of ``corpora.retold`` and the words of odd texts."""
    config = MinhashConfig()
    if sys.argv[1:]:
        print(json.dumps(dropped(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), config)))
        return
    split = MinhashDedupSignature("memory://", config).word_tokenizer.word_tokenize
    words = [[text, split(simplify_text(text, config.norm_config))] for text in ODD]
    version = importlib.metadata.version("datatrove")
    target = Path(__file__).parents[2] / "tests" / "data" / "deduplicate" / f"datatrove_{version}.json"
    target.parent.mkdir(exist_ok=True)
    golden = {"documents": DOCUMENTS, "dropped": dropped(corpora.retold(DOCUMENTS), config), "words": words}
    target.write_text(json.dumps(golden) + "\n", encoding="utf-8")


def dropped(texts: Iterable[str], config: MinhashConfig) -> list[int]:
    """Numbers of the documents that are not the one that stays of their cluster."""
    with tempfile.TemporaryDirectory() as folder:
        signatures, buckets, removed = (str(Path(folder) / name) for name in ("signatures", "buckets", "removed"))
        MinhashDedupSignature(signatures, config).run(Document(text=text, id="") for text in texts)
        for bucket in range(config.num_buckets):
            MinhashDedupBuckets(signatures, buckets, config=config).run(None, bucket, config.num_buckets)
        MinhashDedupCluster(buckets, removed, config).run(None, 0, 1)
        return [number for (number,) in struct.iter_unpack("<I", (Path(removed) / "000000.remove").read_bytes())]


if __name__ == "__main__":
    main()
