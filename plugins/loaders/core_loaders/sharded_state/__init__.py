"""The loader of directories written by `core save-sharded`."""
