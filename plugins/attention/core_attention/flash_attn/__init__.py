"""Paged attention by the library FlashAttention, where it is installed."""
