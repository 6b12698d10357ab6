"""Token files beside megatron-core's: the same bytes for the same documents, and each reads what the other wrote."""

import base64
import json
import subprocess
import sys
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from meshwright.data.dataset import TokenDataset
from meshwright.data.indexed import IndexedDataset
from meshwright.data.indexed_format import bin_path, idx_path
from meshwright.data.indexed_writer import IndexedWriter
from meshwright.data.vocabulary.rank_file import convert
from meshwright.data.vocabulary.tokenizer import EOS_TOKEN, load_tokenizer, train_tokenizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns of packages for GPUs that it does not find
    from megatron.core.datasets import indexed_dataset

TEXTS = ["The herons come in the summer. " * 40, "x", "\u4e2d\u6587 \U0001f600\x00\r\n", EOS_TOKEN, "last one"]
DOCUMENTS = {
    "uint16": (65499, [[5, 65498, 0], [7], list(range(70_000 % 65_000)) * 14, [0]]),
    "int32": (151_936, [[65_535, 65_536, 151_935], [1, 0], [70_000] * 70_000]),
    "empty documents": (100, [[], [1, 2], [], [3], []]),
    "no document": (100, []),
}


def theirs(prefix: Path, documents: list[list[int]], vocab_size: int) -> Path:
    """Write as megatron-core's preprocess_data.py does: one sequence per document."""
    prefix.parent.mkdir(exist_ok=True)
    builder = indexed_dataset.IndexedDatasetBuilder(
        str(bin_path(prefix)), dtype=indexed_dataset.DType.optimal_dtype(vocab_size)
    )
    for document in documents:
        builder.add_document(document, [len(document)])
    builder.finalize(str(idx_path(prefix)))
    return prefix


def assert_same_bytes(one: Path, other: Path) -> None:
    for path_of in (bin_path, idx_path):
        assert path_of(one).read_bytes() == path_of(other).read_bytes()


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_documents_give_the_same_bytes(tmp_path: Path, kind: str) -> None:
    vocab_size, documents = DOCUMENTS[kind]
    with IndexedWriter(tmp_path / "ours", vocab_size=vocab_size) as writer:
        for document in documents:
            writer.add_document(np.array(document, np.int64))
    assert_same_bytes(tmp_path / "ours", theirs(tmp_path / "theirs", documents, vocab_size))


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trained vocabulary, and the smallest one whose ids need int32."""
    folder = tmp_path_factory.mktemp("vocabularies")
    bodies = {"trained": train_tokenizer(TEXTS, 400).body, "65500": convert(many_ranks(65_499), "gpt2", "x")}
    for name, body in bodies.items():
        (folder / f"{name}.json").write_bytes(body)
    return {name: folder / f"{name}.json" for name in bodies}


def many_ranks(size: int) -> bytes:
    """A rank file of so many tokens: all bytes, then pairs of them."""
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [bytes(pair) for pair in product(range(256), repeat=2)][: size - 256]
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


@pytest.mark.parametrize(("vocabulary", "dtype"), [("trained", "uint16"), ("65500", "int32")])
def test_b22_prepare_writes_what_megatron_core_writes(
    tmp_path: Path, vocabularies: dict[str, Path], vocabulary: str, dtype: str
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    command = ["data", "prepare", str(rows), "--output", str(tmp_path / "ours"), "--eval-fraction", "0"]
    command += ["--tokenizer", str(vocabularies[vocabulary]), "--workers", "1", "--json"]
    done = subprocess.run([sys.executable, "-m", "meshwright", *command], capture_output=True, text=True, check=True)
    record = json.loads(done.stdout)
    tokenizer = load_tokenizer(vocabularies[vocabulary])
    documents = [[*ids, tokenizer.eos_id] for ids in tokenizer.encode(TEXTS)]
    assert_same_bytes(tmp_path / "ours", theirs(tmp_path / "theirs", documents, tokenizer.vocab_size))
    assert record["dtype"] == dtype == indexed_dataset.DType.optimal_dtype(tokenizer.vocab_size).__name__
    assert record["train"]["tokens"] == sum(map(len, documents))
    read = indexed_dataset.IndexedDataset(str(tmp_path / "ours"))
    assert [read[number].tolist() for number in range(len(read))] == documents
    assert read.document_indices.tolist() == list(range(len(TEXTS) + 1))


def test_several_sequences_in_a_document_are_read(tmp_path: Path) -> None:
    builder = indexed_dataset.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    sentences = [[1, 2], [3], [4, 5, 6], [65_535]]
    for number, sentence in enumerate(sentences):
        builder.add_item(torch.tensor(sentence))
        if number in (1, 3):
            builder.end_document()
    builder.finalize(str(tmp_path / "theirs.idx"))
    data = IndexedDataset(tmp_path / "theirs")
    data.verify()
    assert [data.sequence(number).tolist() for number in range(len(data))] == sentences
    assert (data.documents, data.borders.tolist()) == (2, [0, 2, 4])
    windows = TokenDataset([tmp_path / "theirs"], 3, vocab_size=65_536)
    assert [row.tolist() for row in windows.batch(np.array([0, 1]))[0]] == [[1, 2, 3], [4, 5, 6]]


def test_b22_offsets_past_two_gigabytes_are_megatron_cores(tmp_path: Path) -> None:
    lengths = [600_000_000, 600_000_000, 5]
    with indexed_dataset._IndexWriter(str(tmp_path / "theirs.idx"), np.int32) as writer:
        writer.write(lengths, None, [0, 1, 2, 3])
    with open(tmp_path / "theirs.bin", "wb") as file:
        file.truncate(4 * sum(lengths))  # sparse: takes no room on disk
    data = IndexedDataset(tmp_path / "theirs")
    data.verify()
    assert data.pointers.tolist() == [0, 2_400_000_000, 4_800_000_000]
    assert len(data.sequence(1)) == 600_000_000
