"""The `xpu` platform: Intel GPUs through torch. It compiles but has not been run on a device."""
