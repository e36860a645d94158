"""The type of adapters' matrices in the name of everything that results depend on. Torch-free.

Owns: its form. Never does: choose the type. Called by: the worker, and the plan of numerics.
"""

from __future__ import annotations


def adapter_name(dtype: str, lora_dtype: str) -> str:
    """Return the part of the numerics id that names the type; empty where it is the model's.

    dtype: the model's. lora_dtype: `--lora-dtype`, `auto` included. Without it, pages on disk and receipts of an adapter in one
    type would count as those of the same adapter in another.
    """
    return "" if lora_dtype in ("auto", dtype) else f"/lora-{lora_dtype}"
