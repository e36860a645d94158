"""The KV cache's bookkeeping: which block holds which tokens, without a tensor in sight.

Owns: the block pool, the prefix table and the manager. Never does: import torch, schedule, read or write KV values.
Called by: the scheduler.
"""
