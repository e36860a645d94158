"""The terminal interface to a model.

Owns: `core chat` and `core complete` after argument parsing. Never does: serve. Called by: these commands.
"""
