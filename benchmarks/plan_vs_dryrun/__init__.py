"""The planner's closed form against the dry run."""
