"""Places outside the KV cache's pool: host memory, disk, and listeners to the cache."""
