"""The loader that generates random weights for a configuration."""
