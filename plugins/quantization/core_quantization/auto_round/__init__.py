"""Checkpoints of AutoRound, in the layouts of GPTQ or AWQ."""
