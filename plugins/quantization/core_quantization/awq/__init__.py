"""Checkpoints of AWQ: 4-bit integers in groups, packed along the outputs."""
