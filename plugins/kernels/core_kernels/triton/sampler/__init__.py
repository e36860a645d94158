"""The sampler's kernels."""
