"""GGUF block formats as canonical weights."""
