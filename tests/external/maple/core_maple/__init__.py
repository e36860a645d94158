"""The maple family of models."""
