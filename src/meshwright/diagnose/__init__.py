"""What a machine and a run can really do, and what is wrong when they do not."""
