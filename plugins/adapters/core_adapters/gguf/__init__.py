"""Adapters in GGUF files, as llama.cpp's converter writes them."""
