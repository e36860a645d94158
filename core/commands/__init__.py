"""The frame of the command line: it finds commands and runs one. Owns: `core --help`, `core --version`, `core plugins list`,
exit codes. Never does: import torch, a server or a model. Called by: the installed command `core`, `python -m core`.
"""
