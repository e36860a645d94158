"""Layers with a recurrent state on Triton kernels: the convolution, the scan over tokens, and the steps after it.

A prompt is computed token by token, exactly as in decoding, so a row's bits depend neither on the chunking of a prompt
nor on the rest of the batch. With `--attention-config.triton.states chunked`, whole chunks of 64 tokens are computed by
matrix products where an op has that form; other tokens are scanned. The ops are defined in `core_runtime.models.state_ops`.
"""
