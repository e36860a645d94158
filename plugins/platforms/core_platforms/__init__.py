"""Platforms that come with the engine: one folder each."""
