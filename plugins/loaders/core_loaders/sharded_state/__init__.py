"""The loader of directories that `core save-sharded` wrote."""
