"""The version of the distribution. Owns: one string, equal to the one in `pyproject.toml`. Called by: everyone."""

__version__ = "0.1.0"
