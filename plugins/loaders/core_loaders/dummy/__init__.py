"""The loader that invents weights for a configuration."""
