"""Observers of the engine: metrics and logging."""
