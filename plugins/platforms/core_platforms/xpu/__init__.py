"""The `xpu` platform: Intel GPUs through torch. It compiles; it has not been run on a device."""
