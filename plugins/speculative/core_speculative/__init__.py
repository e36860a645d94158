"""Speculative proposers that come with the engine."""
