"""Checkpoints of bitsandbytes: nf4, fp4 and 8-bit integers."""
