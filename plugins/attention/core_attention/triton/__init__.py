"""The attention backend `triton`: paged and latent attention on Triton kernels, for GPUs."""
