"""The `cpu` platform: processors, with native kernels where they are compiled."""
