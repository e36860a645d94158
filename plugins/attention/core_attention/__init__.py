"""Attention backends that come with the engine."""
