"""The version of the distribution. Owns: one string, equal to the one in `pyproject.toml`. Called by: all packages."""

__version__ = "0.2.0"
