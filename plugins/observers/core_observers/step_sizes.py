"""The histogram of step sizes.

Owns: the bounds of the histogram. Never does: count. Called by: the engine core (counts), the server's metrics
(report).

A row is the number of steps in each bucket, one more for those beyond all bounds, and the sum of all their tokens.
"""

from __future__ import annotations

STEP_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the buckets in tokens per step, prompt and generated tokens together."""
