"""Data: raw text to Megatron token files, and token files to an ordered stream of batches.

Only ``loader`` imports torch, so that preparing data and the loader's worker processes stay light.
"""
