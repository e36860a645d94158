"""Histograms of KV block residency, counted by the engine and reported by the server.

Owns: names and buckets. Called by: the KV cache (counts), metrics (reports).
"""

RESIDENCY_BUCKETS = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
"""Upper limits in seconds; one more bucket has no limit."""

RESIDENCY_METRICS = {
    "kv_block_lifetime_seconds": "From the time a KV block is cached until it is evicted.",
    "kv_block_idle_before_evict_seconds": "From the last use of a cached KV block until it is evicted.",
    "kv_block_reuse_gap_seconds": "Between two uses of a cached KV block.",
}
