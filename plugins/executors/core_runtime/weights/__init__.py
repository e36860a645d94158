"""Canonical weight formats: the result of quantization methods and the input of kernels."""
