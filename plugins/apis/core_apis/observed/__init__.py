"""Metrics and traces of requests."""
