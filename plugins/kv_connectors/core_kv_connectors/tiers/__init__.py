"""Tiers for evicted blocks: host memory and disk.

Owns: the tiers and their bytes. Never does: touch the device (a plan's `KVTransfers` does), import torch.
Called by: the manager.
"""
