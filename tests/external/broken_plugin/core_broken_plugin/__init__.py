"""Plugins that cannot be used."""
