"""Products of 8-bit floats with inputs of 8-bit floats, by libraries."""
