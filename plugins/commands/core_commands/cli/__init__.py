"""The command `core`: thin commands over the other packages. Owns: command-line words, output and exit codes."""
