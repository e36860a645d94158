"""Paged attention through the FlashInfer library, where it is installed."""
