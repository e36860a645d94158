"""The torch executor: turns step plans into step results on a device."""
