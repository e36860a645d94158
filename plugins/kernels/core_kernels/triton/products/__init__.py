"""Products with prepared weights: forms, tiles, kernels."""
