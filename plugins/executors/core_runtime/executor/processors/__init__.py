"""Logits processors of plugins and users."""
