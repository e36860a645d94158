"""Several engines behind one front (`--data-parallel-size`), as one engine to everything above."""
