"""Checkpoints of HQQ: integers in groups with float zero points."""
