"""Inputs of ``data prepare``: which files, how each format is cut into parts, and the documents in them."""
