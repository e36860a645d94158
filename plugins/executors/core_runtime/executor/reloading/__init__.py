"""Weights of a worker after its start: released, restored, kept, converted and replaced."""
