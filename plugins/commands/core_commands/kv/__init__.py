"""Cached prefixes as the commands see them: what a log computes again, and pages on disk."""
