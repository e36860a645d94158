"""Readers of foreign files against damaged ones: `python -m tests.fuzz.run`, `make fuzz`."""
