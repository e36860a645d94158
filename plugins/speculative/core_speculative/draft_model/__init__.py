"""The speculative plugin `draft_model`: drafts of a smaller model with the same vocabulary."""
