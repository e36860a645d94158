"""Readers of foreign files, messages and requests against damaged ones: `python -m tests.fuzz.run`, `make fuzz`."""
