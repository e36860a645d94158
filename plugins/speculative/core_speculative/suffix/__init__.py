"""The speculative plugin `suffix`: drafts from what followed the same words, here and in earlier answers."""
