"""A corpus from text: a request, the stages that carry it out, and the report."""
