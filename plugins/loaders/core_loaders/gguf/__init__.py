"""The loader of GGUF files."""
