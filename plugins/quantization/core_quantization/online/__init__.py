"""Plain checkpoints quantized while they load."""
