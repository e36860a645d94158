"""Kernel providers that are independent of a platform."""
