"""MindRecord files: read without MindSpore, and turned into token files."""
