"""KV connectors: host memory and disk outside the KV cache's pool, and listeners to the cache."""
