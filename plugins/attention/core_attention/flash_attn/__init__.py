"""Paged attention through the FlashAttention library, where it is installed."""
