"""Drafts in the executor: the draft model's passes, draft heads, and drafts held from step to step."""
