"""Observers of an engine's steps."""
