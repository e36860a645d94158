"""Canonical weight formats: what quantization methods translate checkpoints into and kernels serve."""
