"""Histories of conversations: what a prompt was made of, and why the next one begins otherwise."""
