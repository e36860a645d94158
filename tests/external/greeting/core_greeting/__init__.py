"""The command `core hello`."""
