"""The speculative plugin `ngram`: drafts copied from what the sequence already said."""
