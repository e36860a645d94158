"""Matrix products by cuBLAS, through torch."""
