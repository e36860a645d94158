"""Adapters of a worker: reading, and places among those that steps may use."""
