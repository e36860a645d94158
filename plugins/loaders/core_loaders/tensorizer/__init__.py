"""The loader of files that CoreWeave's tensorizer writes."""
