"""Bounds of the histograms of requests, the same wherever these are counted.

Owns: the bounds, in seconds or tokens. Never does: count. Called by: the server's metrics, the tally of `LLM`.
"""

from __future__ import annotations

FIRST_TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80, 160)
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
REQUEST_BUCKETS = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
LENGTH_BUCKETS = tuple(factor * 10**power for power in range(6) for factor in (1, 2, 5))
N_BUCKETS = (1, 2, 5, 10, 20)
