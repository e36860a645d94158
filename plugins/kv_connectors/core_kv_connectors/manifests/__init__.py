"""KV connectors: host memory and disk, published events, residency, and explanations of misses."""
