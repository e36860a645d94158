"""Built-in loaders: one package a checkpoint format."""
