"""Latent attention that reads its pages in place."""
