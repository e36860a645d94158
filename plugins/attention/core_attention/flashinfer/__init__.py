"""Paged attention by the library FlashInfer, where it is installed."""
