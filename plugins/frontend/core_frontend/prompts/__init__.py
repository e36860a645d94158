"""Conversion of users' prompts into the engine's form."""
