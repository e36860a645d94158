"""Layers with a recurrent state on Triton kernels: the convolution, the scan over tokens, and the steps after it.

A prompt is computed token by token, exactly as in decoding, so a row's bits depend neither on the chunking of a prompt
nor on the rest of the batch. The ops are defined in `core_runtime.models.state_ops`.
"""
