"""Adapters in a running engine: names, memory, requests that wait. Torch-free."""
