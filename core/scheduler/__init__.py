"""The scheduler: which sequences compute how many tokens in the next step, and how results are read. Owns: queues, the token
budget, the step plan, preemption and stop conditions. Never does: import torch, sample. Called by: the engine loop.
"""
