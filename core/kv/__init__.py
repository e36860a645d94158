"""Bookkeeping of the KV cache: which block has which tokens, without any tensors.

Owns: the block pool, KV groups, the prefix table, the manager, and the facade of connectors. Never does: import torch,
schedule, use the device. Called by: the scheduler.
"""
