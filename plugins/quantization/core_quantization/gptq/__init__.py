"""Checkpoints of GPTQ: integers in groups, packed along the inputs."""
