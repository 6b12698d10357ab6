"""The four values that describe a run, and the arithmetic on them. Never imports torch."""
