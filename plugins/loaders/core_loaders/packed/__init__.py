"""The loader of directories that `core convert` wrote."""
