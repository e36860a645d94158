"""The speculative plugin `parallel`: a smaller model that gives all its drafts in one pass."""
