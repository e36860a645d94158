"""Torch-free types that every package may import: requests, parameters, outputs, messages, specs, reasons, errors.

Owns: the vocabulary of the engine. Never does: import torch, read files, start anything. Called by: every other package
and every plugin; nothing here imports another package of `core`.
"""
