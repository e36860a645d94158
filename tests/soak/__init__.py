"""Kills, stops, full disks and clock jumps, and a checker of every answer: `python -m tests.soak.run`, `make soak`."""
