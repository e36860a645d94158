"""Supervision of an engine process: its state, its death, and the engine that replaces it."""
