"""Ranks: processes that compute one model together, on one host or several."""
