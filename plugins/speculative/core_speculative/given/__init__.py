"""The speculative plugin `given`: drafts are the known tokens of an answer that is computed again."""
