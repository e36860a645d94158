"""Attention through torch's flex_attention, which compiles a kernel for each kind of layer."""
