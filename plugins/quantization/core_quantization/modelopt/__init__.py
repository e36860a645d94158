"""Checkpoints of NVIDIA's ModelOpt."""
