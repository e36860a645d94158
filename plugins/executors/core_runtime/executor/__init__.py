"""Executors: they turn step plans into step results on a device."""
