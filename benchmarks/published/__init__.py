"""How far the planner is from published measurements: ``python -m benchmarks.published --measurements CSV``."""
