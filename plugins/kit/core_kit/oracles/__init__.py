"""Reference results and comparisons."""
