"""Layers with a state on Triton kernels: the convolution, the scan over tokens, and what follows it.

A prompt is computed token after token, as it is when its tokens come one by one, so a row's bits depend neither on where a
prompt is cut nor on the company that it has. What each op means, `core_runtime.models.state_ops` says.
"""
