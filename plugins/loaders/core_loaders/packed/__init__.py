"""The loader of directories written by `core convert`."""
