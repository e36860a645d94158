"""Kernel providers that belong to no platform."""
