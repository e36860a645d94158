"""The KV cache's bookkeeping: which block holds which tokens, without a tensor in sight.

Owns: the block pool, KV groups, the prefix table, the manager, tiers and events. Never does: import torch, schedule, touch
the device.
Called by: the scheduler.
"""
