"""Rotary scaling of GGUF files in Hugging Face's terms.

Owns: the reading of the scaling. Never does: apply it (the model's rotary embedding does). Called by: the GGUF loader.

Conversions of Llama 3 models store one divisor per rotary frequency instead of the parameters. The parameters are
recovered here and accepted only when they reproduce the divisors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from core.api.errors import CheckpointError
from core_loaders.gguf.keys import LONGEST
from core_loaders.gguf.reader import GGUFTensor, open_map
from core_loaders.gguf.source import Source

FACTORS = "rope_freqs.weight"
LONG = "rope_factors_long.weight"
SHORT = "rope_factors_short.weight"
LOW = 1.0
HIGH = 4.0
ORIGINAL_CONTEXTS = (8192, 4096, 16384, 32768)


def rotary_scaling(source: Source, size: int, theta: float) -> dict[str, Any] | None:
    """Return the value of `rope_scaling`, or None. Raises CheckpointError for an unsupported scaling. Raises
    CheckpointError for a scaling that is not understood.

    size: rotated numbers per head.
    """
    kind = source.text("rope.scaling.type", "linear")
    factor = _factor(source)
    if LONG in source.tensors or SHORT in source.tensors:
        return _longrope(source, size)
    if kind not in ("none", "linear", "yarn"):
        raise source.fail(
            f"has the rotary scaling '{kind}', which is not supported in GGUF files; expected none, linear or yarn."
        )
    if FACTORS in source.tensors:
        if kind != "none" and factor != 1.0:
            raise source.fail(
                f"has both rotary divisors in '{FACTORS}' and a rotary scaling by {factor:g}; expected one of them."
            )
        return _llama3(source.path, source.tensors[FACTORS], size, theta)
    if kind == "yarn":
        return _yarn(source, factor)
    if kind == "linear" and factor != 1.0:
        return {"rope_type": "linear", "factor": factor}
    return None


def _yarn(source: Source, factor: float) -> dict[str, Any]:
    """Return YaRN's parameters; parameters with defaults only if the file has them."""
    found: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": source.integer("rope.scaling.original_context_length", 1, LONGEST),
    }
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if f"rope.scaling.{key}" in source:
            found[name] = source.number(f"rope.scaling.{key}", 0.0, 1e6)
    return found


def _longrope(source: Source, size: int) -> dict[str, Any]:
    """Return LongRoPE's divisors of each frequency, for short and for long texts."""
    source.integer("rope.scaling.original_context_length", 1, LONGEST)
    return {
        "rope_type": "longrope",
        "short_factor": _divisors_of(source, SHORT, size),
        "long_factor": _divisors_of(source, LONG, size),
        "attention_factor": source.number("rope.scaling.attn_factor", 1e-6, 1e6, 1.0),
        "original_max_position_embeddings": source.integer("rope.scaling.original_context_length", 1, LONGEST),
    }


def _divisors_of(source: Source, name: str, size: int) -> list[float]:
    tensor = source.tensors.get(name)
    if tensor is None or tensor.type.name != "F32" or tensor.shape != (size // 2,):
        raise CheckpointError(
            f"{source.path}: tensor '{name}' is missing or not {size // 2} numbers of type F32. The file is damaged."
        )
    data = open_map(source.path)
    raw = data[tensor.offset : tensor.offset + tensor.nbytes]
    divisors = np.frombuffer(raw, dtype="<f4").astype(np.float64)
    if not np.isfinite(divisors).all() or divisors.min() <= 0:
        raise CheckpointError(
            f"{source.path}: tensor '{name}' holds numbers that are not positive. The file is damaged."
        )
    return [float(divisor) for divisor in divisors]


def _factor(source: Source) -> float:
    """Return the factor of linear scaling, 1 without any. `scale_linear` is its older name, and 0 means none."""
    older = source.number("rope.scale_linear", 0.0, 1e6, 0.0)
    factor = source.number("rope.scaling.factor", 0.0, 1e6, older)
    return factor or 1.0


def _llama3(path: str, tensor: GGUFTensor, head_dim: int, theta: float) -> dict[str, Any]:
    """Return the parameters that reproduce the stored divisors. Raises CheckpointError when there are none."""
    if tensor.type.name == "F32" and tensor.shape == (head_dim // 2,):
        data = open_map(path)
        raw = data[tensor.offset : tensor.offset + tensor.nbytes]
        stored = np.frombuffer(raw, dtype="<f4").astype(np.float64)
        factor = float(stored.max(initial=1.0))  # the longest waves are divided by the full factor
        for original in ORIGINAL_CONTEXTS:
            divisors = _divisors(head_dim, theta, factor, original)
            if factor >= 1 and np.allclose(stored, divisors, rtol=1e-4):
                return {
                    "rope_type": "llama3",
                    "factor": factor,
                    "low_freq_factor": LOW,
                    "high_freq_factor": HIGH,
                    "original_max_position_embeddings": original,
                }
    raise CheckpointError(
        f"{path}: the rotary divisors in '{FACTORS}' are not those of a Llama 3 model. Use the model's safetensors checkpoint."
    )


def _divisors(head_dim: int, theta: float, factor: float, original: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the divisors: short waves keep their frequency, long ones are divided by the factor, and those between are
    blended.
    """
    exponents = np.arange(0, head_dim, 2) / head_dim
    wavelength = 2 * math.pi * theta**exponents
    blend = np.clip((original / wavelength - LOW) / (HIGH - LOW), 0.0, 1.0)
    return 1.0 / ((1.0 - blend) / factor + blend)
