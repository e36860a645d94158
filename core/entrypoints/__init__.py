"""Modules that vLLM's users start with `python -m`."""
