"""Proposers for speculative decoding that are part of the engine."""
