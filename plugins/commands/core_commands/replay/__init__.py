"""Answers that are computed again, to verify a receipt or to compare two engines."""
