"""Adapters: reading them, serving them, finding them by name."""
