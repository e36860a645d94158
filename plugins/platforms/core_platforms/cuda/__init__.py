"""The `cuda` platform: NVIDIA GPUs through torch."""
