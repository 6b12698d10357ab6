"""The real training step of any rank of any world, executed on tensors without data."""
