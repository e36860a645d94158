"""Detection of an engine that makes no progress."""
