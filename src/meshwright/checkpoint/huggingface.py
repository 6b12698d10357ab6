"""The weights of a Hugging Face model folder, read row by row under our names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from meshwright.checkpoint.errors import CheckpointError
from meshwright.checkpoint.files import read_json
from meshwright.checkpoint.safetensors_file import SafetensorsFile
from meshwright.model.families import FAMILIES, NameMap, derived_buffer
from meshwright.spec.huggingface import read_family
from meshwright.spec.model import ModelSpec
from meshwright.spec.parameters import EMBEDDING, HEAD, Shape, parameter_shapes

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_SHOWN = 10
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class HuggingFaceWeights:
    """Tensors of a folder by their Hugging Face names, each with the file that holds it.

    Attributes:
        names: between their names and ours.
    """

    folder: Path
    files: Mapping[str, SafetensorsFile]
    names: NameMap

    @classmethod
    def open(cls, folder: Path) -> HuggingFaceWeights:
        """Read config.json, the index and every file's header.

        Raises:
            CheckpointError: a file is missing or torn, or the weights are not safetensors.
            ValueError: config.json is missing or of a family that is not known.
        """
        names = FAMILIES[read_family(folder)]
        index = folder / INDEX
        return cls(folder, _indexed(index) if index.exists() else _unindexed(folder), names)

    def initial(self, name: str, shape: torch.Size, start: int, stop: int) -> Tensor:
        """Rows of a parameter of ours, fp32; the rows past theirs, which fill up the vocabulary, are zero."""
        theirs = self.names.theirs(name)
        file = self.files[theirs]
        real = file.entries[theirs].shape[0]
        held = min(stop, real)
        part = file.rows(theirs, min(start, held), held).float()
        if len(part) == stop - start:
            return part
        padding = torch.zeros(stop - start - len(part), *shape[1:])
        return torch.cat((part, padding))

    def dtype(self, name: str) -> torch.dtype:
        """The format in which a parameter of ours is stored."""
        theirs = self.names.theirs(name)
        return self.files[theirs].entries[theirs].dtype

    def problems(self, spec: ModelSpec) -> list[str]:
        """Why these weights do not fit a model, one line each with Hugging Face names; empty where they do."""
        wanted = {self.names.theirs(ours): shape for ours, shape in self._wanted(spec).items()}
        both = [name for name in wanted if name in self.files]
        shapes = [(name, list(self._shape(name)), list(wanted[name])) for name in both if not self._fits(name, wanted)]
        extra = [n for n in self.files if n not in wanted and not derived_buffer(n) and not self._tied_head(n, spec)]
        groups = {
            "missing from the files": [name for name in wanted if name not in self.files],
            "in the files but not in the model": extra,
            "of another shape": [f"{name} {there}, the model has {here}" for name, there, here in shapes],
        }
        lines = [names_line(title, sorted(listed)) for title, listed in groups.items() if listed]
        if not lines and spec.tie_word_embeddings and not self._head_is_embedding():
            lines.append(
                "tie_word_embeddings is true, but lm_head.weight differs from the embedding: "
                "set model.tie_word_embeddings to false to keep both"
            )
        return lines

    def describe(self) -> str:
        """Files, bytes and formats, in words."""
        files = {file.path: file for file in self.files.values()}
        size = sum(self.files[name].entries[name].size for name in self.files)
        formats = sorted({str(f.entries[n].dtype).removeprefix("torch.") for n, f in self.files.items()})
        return f"{self.folder} ({len(files)} file{'s'[: len(files) != 1]}, {size / 1e9:.3g} GB, {', '.join(formats)})"

    def _wanted(self, spec: ModelSpec) -> dict[str, Shape]:
        shapes = parameter_shapes(spec)
        unknown = [name for name in shapes if not self._knows(name)]
        if unknown:
            raise CheckpointError(f"{self.folder}: its family has no {', '.join(unknown[:_SHOWN])}")
        return shapes

    def _knows(self, ours: str) -> bool:
        try:
            self.names.theirs(ours)
        except KeyError:
            return False
        return True

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.files[name].entries[name].shape

    def _fits(self, name: str, wanted: Mapping[str, Shape]) -> bool:
        return self._shape(name) == tuple(wanted[name])

    def _tied_head(self, name: str, spec: ModelSpec) -> bool:
        return spec.tie_word_embeddings and name == self.names.theirs(HEAD)

    def _head_is_embedding(self) -> bool:
        """Whether a head that a tied model carries along is the embedding again, bit for bit."""
        head, embedding = self.names.theirs(HEAD), self.names.theirs(EMBEDDING)
        if head not in self.files:
            return True
        if self._shape(head) != self._shape(embedding):
            return False
        count = self._shape(head)[0]
        blocks = [(start, min(start + _BLOCK_ROWS, count)) for start in range(0, count, _BLOCK_ROWS)]
        return all(
            torch.equal(self.files[head].rows(head, *b), self.files[embedding].rows(embedding, *b)) for b in blocks
        )


def _indexed(index: Path) -> dict[str, SafetensorsFile]:
    try:
        places: dict[str, str] = dict(read_json(index)["weight_map"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{index}: not an index of weights ({type(error).__name__}: {error})") from error
    opened = {file: SafetensorsFile.open(index.with_name(file)) for file in sorted(set(places.values()))}
    if absent := sorted(name for name, file in places.items() if name not in opened[file].entries):
        raise CheckpointError(f"{index}: " + names_line("not in the file that the index names", absent))
    return {name: opened[file] for name, file in places.items()}


def _unindexed(folder: Path) -> dict[str, SafetensorsFile]:
    single = folder / WEIGHTS
    paths = [single] if single.exists() else sorted(folder.glob("*.safetensors"))
    if not paths:
        others = sorted(path.name for kind in ("*.bin", "*.pth", "*.pt", "*.ckpt") for path in folder.glob(kind))
        held = f"; it holds {', '.join(others[:_SHOWN])}, which are not read" if others else ""
        raise CheckpointError(f"{folder}: no .safetensors file{held}")
    files: dict[str, SafetensorsFile] = {}
    for file in map(SafetensorsFile.open, paths):
        if twice := sorted(files.keys() & file.entries.keys()):
            raise CheckpointError(
                f"{file.path}: {twice[0]} is in {files[twice[0]].path.name} as well, without an index"
            )
        files |= dict.fromkeys(file.entries, file)
    return files


def names_line(title: str, names: list[str]) -> str:
    """``title (count): first names``, the rest as a number."""
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{title} ({len(names)}): {', '.join(names[:_SHOWN])}{more}"
