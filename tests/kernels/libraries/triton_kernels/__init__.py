"""Stand-in for triton_kernels 3.5 of triton-lang/triton: its published signatures, computed with torch."""
