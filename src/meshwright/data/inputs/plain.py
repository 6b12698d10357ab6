"""Plain text: a file is a document, and one that is too long is cut into documents at line ends."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from meshwright.data.inputs.part import MAX_DOCUMENT_BYTES, Part, Source, Tally, shown
from meshwright.data.inputs.streams import chunks, compression_of
from meshwright.data.text import decode

PIECE_BYTES = 1 << 20


def cut(path: Path, target_bytes: int) -> Iterator[tuple[Part, int]]:
    """The file, or parts of about ``target_bytes`` of one that is too long for a document, and their sizes in bytes."""
    size = path.stat().st_size
    if compression_of(path) or size <= MAX_DOCUMENT_BYTES:
        yield Part(path), size
        return
    step = -(-target_bytes // PIECE_BYTES) * PIECE_BYTES
    for start in range(0, size, step):
        end = min(start + step, size)
        yield Part(path, start, end), end - start


def read(part: Part, text_key: str, tally: Tally) -> Iterator[Source]:
    """Documents of a part: the file, or what it is cut into where it is longer than ``MAX_DOCUMENT_BYTES``.

    It is cut once in each ``PIECE_BYTES``: after the last line end there, else after the last space, else between
    characters. So a document has less than twice that, and parts do not change what they are.
    """
    found = chunks(part.path, tally, max(part.start - PIECE_BYTES, 0), part.end)
    if part.end is None:
        held: list[bytes] = []
        size = 0
        for chunk in found:
            held.append(chunk)
            size += len(chunk)
            if size > MAX_DOCUMENT_BYTES:
                break
        else:
            yield _document(b"".join(held), part.path, 0)
            return
        found = chain(held, found)
    for source in _pieces(part, found):
        tally.pieces[shown(part.path)] += 1
        yield source


def _document(raw: bytes, path: Path, at: int) -> Source:
    text, repaired = decode(raw)
    return Source(text, path, at, "byte", repaired)


def _pieces(part: Part, found: Iterator[bytes]) -> Iterator[Source]:
    # The window before the part tells where its first document starts.
    begin = max(part.start - PIECE_BYTES, 0)
    held, at = b"", 0
    for window, is_last in _windows(found):
        end = len(window) if is_last else _cut_in(window)
        if begin >= part.start:
            yield _document(held + window[:end], part.path, at)
        held, at = window[end:], begin + end
        begin += PIECE_BYTES
        if part.end is not None and begin >= part.end:
            return


def _windows(found: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Bytes in windows of ``PIECE_BYTES``, and whether a window is the last one, which may be shorter."""
    held = bytearray()
    for chunk in found:
        held += chunk
        while len(held) > PIECE_BYTES:
            yield bytes(held[:PIECE_BYTES]), False
            del held[:PIECE_BYTES]
    if held:
        yield bytes(held), True


def _cut_in(window: bytes) -> int:
    """Where to cut in a window: after its last line end, else its last space, else at its end, between characters."""
    end = window.rfind(b"\n") + 1 or window.rfind(b" ") + 1
    return end or len(window) - _bytes_of_cut_character(window)


def _bytes_of_cut_character(window: bytes) -> int:
    """Bytes at the end of a window that start a UTF-8 character which goes on after it."""
    for count in (1, 2, 3):
        byte = window[-count]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return count if needed > count else 0
    return 0
