"""Checkpoints of compressed-tensors, the format of llm-compressor: integers, floats, and sparse matrices."""
