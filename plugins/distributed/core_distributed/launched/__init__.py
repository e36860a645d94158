"""Ranks that a launcher such as torchrun starts, all with the same command or script."""
