"""The run described by a YAML file: schema, loading, resolving, comparing. Never imports torch."""
