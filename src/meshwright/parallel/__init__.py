"""Rewriting a model from outside, one file per dimension.

`apply.parallelize` is the one visible order: pipeline cut, tensor, recompute, compile, precision, ZeRO.
"""
