"""The `cpu` platform: processors, with native kernels where they have been compiled."""
