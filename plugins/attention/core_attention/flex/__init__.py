"""Attention by torch's flex_attention, which compiles what a layer asks for."""
