"""The rows of the table of architectures."""
