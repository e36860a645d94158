"""Metric families by subject; `core_observers.metrics` joins them to one page."""
