"""The built-in loaders, one package per checkpoint format."""
