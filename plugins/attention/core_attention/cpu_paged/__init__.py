"""The attention backend `cpu_paged`: paged attention on the native kernels of the `cpu` platform."""
