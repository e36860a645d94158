"""A model's tensors: names, checks, loading, packing and saving."""
