"""The `triton` kernels: the operations of a forward pass and the sampler, for GPUs."""
