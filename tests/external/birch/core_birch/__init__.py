"""The birch family of models."""
