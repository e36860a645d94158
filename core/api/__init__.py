"""Torch-free types that every package may import: requests, parameters, outputs, messages, specs, reasons, errors. Never does:
import torch or another package of `core`, read files, start anything. Called by: every other package and every plugin.
"""
