"""Fails at import."""

raise RuntimeError("a vendor library is missing")
