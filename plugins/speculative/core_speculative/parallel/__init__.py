"""The speculative plugin `parallel`: a smaller model that computes all its drafts in one pass."""
