"""Checkpoints: sharded, complete or ignored, readable under any layout."""
