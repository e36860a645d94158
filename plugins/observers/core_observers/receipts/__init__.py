"""Receipts: what an answer was computed with, and a keyed digest of its tokens, to compute it again and compare."""
