"""Quotes: when requests will have their first token and their end."""
