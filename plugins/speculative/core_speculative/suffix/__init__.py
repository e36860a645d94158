"""The speculative plugin `suffix`: drafts from what followed the same tokens in the sequence and in earlier answers."""
