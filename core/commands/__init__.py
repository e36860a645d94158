"""The frame of the command line: it finds commands, runs one, prints the overview, and has two commands of its own.

Owns: `core --help`, `core --version`, `core plugins list`, exit codes. Never does: import torch, a
server or a model. Called by: the installed command `core`, `python -m core`.
"""
