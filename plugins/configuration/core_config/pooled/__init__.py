"""Settings of pooling models, from arguments and checkpoint files."""
