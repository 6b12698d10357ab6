"""Meshwright: train language models under any parallel layout, from one YAML file."""

__version__ = "0.1.0"
