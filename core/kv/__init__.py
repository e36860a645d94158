"""The KV cache's bookkeeping: which block holds which tokens, without a tensor in sight.

Owns: the block pool, KV groups, the prefix table, the manager, and the connectors as one. Never does: import torch, schedule,
touch the device.
Called by: the scheduler.
"""
