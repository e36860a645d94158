"""Eight-bit floating-point rows, made while loading."""
