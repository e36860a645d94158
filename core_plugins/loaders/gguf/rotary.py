"""Rotary scaling of GGUF files in Hugging Face's terms.

Owns: reading the scaling back. Never does: apply it (the model's rotary embedding does). Called by: the GGUF loader.

Conversions of Llama 3 models store one divisor a rotary frequency instead of the parameters; those are found again here and
accepted only when they reproduce the divisors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from core.api.errors import CheckpointError
from core_plugins.loaders.gguf.metadata import Metadata
from core_plugins.loaders.gguf.reader import GGUFTensor, open_map

FACTORS = "rope_freqs.weight"
LOW = 1.0
HIGH = 4.0
ORIGINAL_CONTEXTS = (8192, 4096, 16384, 32768)


def rotary_scaling(
    metadata: Metadata, prefix: str, head_dim: int, theta: float, by_name: dict[str, GGUFTensor]
) -> dict[str, Any] | None:
    """The value of `rope_scaling`, or None. Raises CheckpointError for a scaling that is not understood."""
    kind = metadata.text(f"{prefix}.rope.scaling.type", "linear")
    factor = _factor(metadata, prefix)
    if kind not in ("none", "linear"):
        raise CheckpointError(
            f"{metadata.path}: rotary scaling '{kind}' is not supported in GGUF files; expected none or linear. "
            "Use the model's safetensors checkpoint."
        )
    if FACTORS in by_name:
        if kind == "linear" and factor != 1.0:
            raise CheckpointError(
                f"{metadata.path}: has both rotary divisors in '{FACTORS}' and a rotary scaling by {factor:g}; expected one "
                "of them. Use the model's safetensors checkpoint."
            )
        return _llama3(metadata.path, by_name[FACTORS], head_dim, theta)
    if kind == "linear" and factor != 1.0:
        return {"rope_type": "linear", "factor": factor}
    return None


def _factor(metadata: Metadata, prefix: str) -> float:
    """Of linear scaling, 1 without any; `scale_linear` is its older name, and 0 says that there is none."""
    older = metadata.number(f"{prefix}.rope.scale_linear", 0.0, 1e6, 0.0)
    factor = metadata.number(f"{prefix}.rope.scaling.factor", 0.0, 1e6, older)
    return factor or 1.0


def _llama3(path: str, tensor: GGUFTensor, head_dim: int, theta: float) -> dict[str, Any]:
    """The parameters that reproduce the stored divisors. Raises CheckpointError when there are none."""
    if tensor.type.name == "F32" and tensor.shape == (head_dim // 2,):
        data = open_map(path)
        raw = data[tensor.offset : tensor.offset + tensor.nbytes]
        stored = np.frombuffer(raw, dtype="<f4").astype(np.float64)
        factor = float(stored.max(initial=1.0))  # the longest waves are divided by the whole factor
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
    """Short waves keep their frequency, long ones are divided by the factor, and the ones between are blended."""
    exponents = np.arange(0, head_dim, 2) / head_dim
    wavelength = 2 * math.pi * theta**exponents
    blend = np.clip((original / wavelength - LOW) / (HIGH - LOW), 0.0, 1.0)
    return 1.0 / ((1.0 - blend) / factor + blend)
