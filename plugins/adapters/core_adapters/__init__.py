"""Adapters of models (LoRA): formats of their files."""
