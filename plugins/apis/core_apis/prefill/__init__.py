"""Prompts that a server has computed by another one, where that is faster."""
