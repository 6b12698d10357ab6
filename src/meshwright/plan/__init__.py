"""Which layout fits, how fast it is, why, and how far off the prediction may be. No torch."""
