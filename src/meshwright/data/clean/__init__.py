"""Cleaning: public rule sets that keep, edit or drop a document, each with its source and thresholds."""
