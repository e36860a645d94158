"""Drafts from the model's hidden states."""
