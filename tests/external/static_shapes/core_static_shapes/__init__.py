"""A device that compiles programs for a few fixed sizes."""
