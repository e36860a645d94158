"""Checkpoints of AQLM: sums of vectors from codebooks."""
