"""Text as it comes from files: decoding with defined results, and the held-out split."""

import hashlib
import re

REPLACEMENT = "\ufffd"
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def decode(raw: bytes) -> tuple[str, bool]:
    """UTF-8 text without byte order mark, and whether bytes that are not UTF-8 became U+FFFD."""
    return decode_value(raw.removeprefix(BYTE_ORDER_MARK))


def decode_value(raw: bytes | memoryview) -> tuple[str, bool]:
    """UTF-8 text, and whether bytes that are not UTF-8 became U+FFFD."""
    try:
        return str(raw, "utf-8"), False
    except UnicodeDecodeError:
        return str(raw, "utf-8", errors="replace"), True


def repair(text: str) -> tuple[str, bool]:
    """Text that has a UTF-8 form, and whether lone surrogates (possible in JSON) became U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return LONE_SURROGATE.sub(REPLACEMENT, text), True
    return text, False


def is_held_out(utf8: bytes, fraction: float) -> bool:
    """Whether a document belongs to the held-out split.

    Decided by a hash of its text alone: the order of files changes nothing, adding documents moves none
    between the splits, and equal documents are always on the same side.
    """
    digest = hashlib.blake2b(utf8, digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64
