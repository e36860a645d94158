"""The command `core`: thin commands over the other packages. Owns: words, output and exit codes."""
