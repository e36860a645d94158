"""What failures of a device mean to its user.

Owns: the sentences for errors that torch raises. Never does: catch an error. Called by: the platform, the runtime.
"""

from __future__ import annotations

from typing import Final

import torch

MEANINGS: Final = (
    ("driver on your system is too old", "the driver is too old", "update it, or install a torch for an older CUDA"),
    (
        "busy or unavailable",
        "another process has it to itself",
        "end that process, choose another device, or let processes share it with nvidia-smi -c DEFAULT",
    ),
    (
        "no kernel image is available",
        "the installed torch has no kernels for it",
        "install a torch that is built for this GPU",
    ),
    ("No CUDA GPUs are available", "torch sees no GPU", "CUDA_VISIBLE_DEVICES may name one that is not there"),
)
"""Words of an error, what it means, and a way out."""


def meaning(error: BaseException, device: str, free: int | None = None) -> str | None:
    """Return a sentence for an error of the device, with a way out; None for another error.

    device: its name. free: bytes that it has left, if that is known.
    """
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or "CUDA out of memory" in text:
        left = "" if free is None else f" ({free >> 20} MiB are left)"
        return (
            f"device '{device}': it has too little memory{left}; end what else uses it, lower --max-num-batched-tokens or "
            "--gpu-memory-utilization, or choose fewer bits a weight with --quantization."
        )
    for words, what, way_out in MEANINGS:
        if words in text:
            return f"device '{device}': {what}; {way_out}."
    return None


def at_opening(error: RuntimeError, device: str) -> str:
    """Return a sentence for an error with which torch has not opened a device."""
    first = str(error).partition("\n")[0].rstrip(".")
    where = "nvidia-smi" if device.startswith("cuda") else "the vendor's tool"
    return meaning(error, device) or f"device '{device}': torch cannot use it: {first}; {where} says more about it."
