"""Talking to a model in a terminal.

Owns: `core chat` and `core complete` behind their arguments. Never does: serve. Called by: these commands.
"""
