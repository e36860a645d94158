"""Models: one generic decoder assembled from a family row, and the loading of its weights."""
