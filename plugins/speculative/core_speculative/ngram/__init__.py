"""The speculative plugin `ngram`: drafts copied from the sequence's own earlier tokens."""
