"""Sizes of the attention biases that isolated documents and sliding windows need: as the model makes them, and as
memory is planned."""

ALIGNMENT = 16
"""Elements of a row that memory-efficient attention on CUDA takes without a padded copy
(ATen/native/transformers/attention.cpp, ``pad_bias``)."""


def row_elements(length: int) -> int:
    """Elements that are held for a row of ``length`` positions."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def binding_window(window: int | None, length: int) -> int | None:
    """A window that hides something of ``length`` positions, or None: layers with the same one share a bias."""
    return window if window is not None and window < length else None
