"""Which sequences compute how many tokens in the next step, and what the results mean.

Owns: queues, the token budget, the step plan, preemption and stop conditions. Never does: import torch, sample, decode
text. Called by: the engine loop.
"""
