"""Projector files (`mmproj-*.gguf`): the tower of a model whose text is another GGUF file."""
