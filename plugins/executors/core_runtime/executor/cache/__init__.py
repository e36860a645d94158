"""The KV cache of a worker: its memory, the layout of its pages, and copies of its blocks."""
