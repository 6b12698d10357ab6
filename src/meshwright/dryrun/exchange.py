"""Exchanging a function for the duration of a context."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextmanager
def exchanged(owner: Any, name: str, wrapper: Wrapper) -> Iterator[None]:
    """Put ``wrapper(function)`` in the place of a function of a module or class; KeyError where it has none."""
    original = vars(owner)[name]
    if isinstance(original, staticmethod):
        setattr(owner, name, staticmethod(wrapper(original.__func__)))
    else:
        setattr(owner, name, wrapper(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
