"""Vocabularies in every file format."""
