"""Checkpoints in an object store, read by ranges."""
