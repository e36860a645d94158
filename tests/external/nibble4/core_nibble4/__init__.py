"""4-bit checkpoints with a packing and kernels of their own."""
