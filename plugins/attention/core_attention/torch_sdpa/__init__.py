"""Paged attention in plain torch: the reference that every other backend is tested against."""
