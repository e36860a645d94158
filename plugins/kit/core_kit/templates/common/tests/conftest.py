"""Fixtures of the kit: a tiny checkpoint, and text generated with chosen plugins."""

pytest_plugins = ["core_kit.pytest_plugin"]
