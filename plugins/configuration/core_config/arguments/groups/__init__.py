"""Declarations of the engine arguments that the configuration reads, a group a file: entry points of `core.arguments`."""
