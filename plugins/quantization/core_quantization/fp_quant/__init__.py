"""Checkpoints of FP-Quant (QuTLASS): 4-bit floats whose inputs are rotated while a model runs."""
