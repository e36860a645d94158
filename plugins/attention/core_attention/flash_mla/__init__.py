"""Latent attention through FlashMLA, where it is installed."""
