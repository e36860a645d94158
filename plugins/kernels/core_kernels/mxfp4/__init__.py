"""Experts in MXFP4 by the library `triton_kernels`, where it is installed."""
