"""The `rocm` platform: AMD GPUs through torch. It compiles; it has not been run on a device."""
