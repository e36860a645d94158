"""Gated linear attention, and a family of models with it."""
