"""Memory that encoding one long document takes, by the kind of vocabulary: python vocabulary_memory.py [--size MB]

Trains a vocabulary of each kind on docstrings and encodes the made-up web as one document, in a process each; "other
tokenizer.json" is the byte-level BPE with a prefix space. Prints MiB above the text, and bytes for each character.
Linux only.
"""

import argparse
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import corpora
import sentencepiece

from meshwright.data.vocabulary.tokenizer import train_tokenizer

LLAMA_2 = {"model_type": "bpe", "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
ENCODE = r"""
import re, sys
from pathlib import Path
from meshwright.data.vocabulary.tokenizer import load_tokenizer
def status(name):
    return int(re.search(name + r":\s+(\d+) kB", Path("/proc/self/status").read_text())[1])
tokenizer = load_tokenizer(sys.argv[1])
tokenizer.encode_arrays(["a few words " * 1000])
text = Path(sys.argv[2]).read_text(encoding="utf-8")
Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
before = status("VmRSS")
tokenizer.encode_arrays([text])
print(tokenizer.engine, status("VmHWM") - before, len(text))
"""


def main() -> None:
    """Train, encode, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=10, metavar="MB", help="size of the document (10)")
    args = parser.parse_args()
    lines = [line for text in corpora.docstrings() for line in text.splitlines()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text").write_text("\n".join(corpora.generated(args.size * 1_000_000)), encoding="utf-8")
        for kind, (file, body) in _vocabularies(lines).items():
            (folder / file).write_bytes(body)
            command = [sys.executable, "-c", ENCODE, str(folder / file), str(folder / "text")]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            engine, kib, characters = done.stdout.split()
            per_character = int(kib) * 1024 / int(characters)
            print(f"{kind} ({engine}): {int(kib) >> 10} MiB, {per_character:.1f} bytes a character", flush=True)


def _vocabularies(lines: list[str]) -> dict[str, tuple[str, bytes]]:
    plain = train_tokenizer(lines, 8000).body
    other = json.loads(plain)
    other["pre_tokenizer"]["add_prefix_space"] = True
    return {
        "byte-level BPE": ("tokenizer.json", plain),
        "sentencepiece BPE, Llama 2's way": ("llama2.model", _sentencepiece(lines, **LLAMA_2)),
        "sentencepiece unigram": ("unigram.model", _sentencepiece(lines, model_type="unigram")),
        "other tokenizer.json": ("other.json", json.dumps(other).encode()),
    }


def _sentencepiece(lines: list[str], **options: str | bool) -> bytes:
    body = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=body, minloglevel=2, num_threads=1, vocab_size=4000, **options
    )
    return body.getvalue()


if __name__ == "__main__":
    main()
