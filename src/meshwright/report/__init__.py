"""Self-contained pages for people to look at: one HTML file each, nothing loaded from anywhere."""
