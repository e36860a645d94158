"""Checkpoints of AMD Quark: integers of 4 and 8 bits, fp8, mxfp4."""
