"""Parameters of Mistral's newer models in the style of `config.json`: scaled rotation, and 8-bit floats.

Owns: `yarn`, `llama_4_scaling` and `quantization`. Never does: ignore a key in them. Called by: `params`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from core.api.errors import CheckpointError

YARN = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta": "beta_fast",
    "alpha": "beta_slow",
}
SCALING = ("beta", "original_max_position_embeddings")
"""Parameters of the query scaling at distant positions."""
FP8 = "fp8_e4m3"
SCHEMES = {"TENSOR": "static", "NO_SCALES": "dynamic", None: "static"}
"""How a matrix's inputs are scaled, by declared scheme."""


def rotation(path: Path, yarn: Any, scaling: Any) -> dict[str, Any]:
    """Return the parameters of a scaled rotation; empty for a plain one. Raises CheckpointError."""
    if not yarn:
        if scaling:
            raise CheckpointError(f"{path}: has llama_4_scaling without yarn; expected both or neither.")
        return {}
    _check_keys(path, "yarn", yarn, (*YARN, "apply_scale"))
    parameters: dict[str, Any] = {"rope_type": "yarn"}
    for key, name in YARN.items():
        if key in yarn:
            parameters[name] = _number(path, f"yarn.{key}", yarn[key])
    if not yarn.get("apply_scale", True):
        parameters["attention_factor"] = 1.0
    if scaling:
        _check_keys(path, "llama_4_scaling", scaling, SCALING)
        beta, original = (_number(path, f"llama_4_scaling.{key}", scaling.get(key)) for key in SCALING)
        if original != parameters.get("original_max_position_embeddings"):
            raise CheckpointError(
                f"{path}: llama_4_scaling has original_max_position_embeddings {original}; expected that of yarn."
            )
        parameters["llama_4_scaling_beta"] = beta
    return parameters


def quantization(path: Path, declared: Any) -> dict[str, Any]:
    """Return the quantization declaration under the names of `config.json`. Raises CheckpointError."""
    if not declared:
        return {}
    if isinstance(declared, dict):
        method = str(declared.get("quant_method", "")).lower().replace("_", "-")
        if method == "compressed-tensors":
            return {"quantization_config": {**declared, "quant_method": method}}
        scheme = declared.get("qscheme_act")
        if declared.get("qformat_weight") == FP8 and scheme in SCHEMES:
            _check_keys(path, "quantization", declared, ("qformat_weight", "qscheme_act"))
            return {"quantization_config": {"quant_method": "fp8", "activation_scheme": SCHEMES[scheme]}}
    known = ", ".join(str(scheme) for scheme in SCHEMES if scheme)
    raise CheckpointError(
        f"{path}: quantization is {declared!r:.200}; expected qformat_weight {FP8} with qscheme_act {known}, or a declaration "
        "of compressed-tensors."
    )


def _check_keys(path: Path, name: str, values: Any, known: Iterable[str]) -> None:
    listed = ", ".join(known)
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: {name} is {values!r:.60}; expected an object with {listed}.")
    unknown = sorted(values.keys() - set(known))
    if unknown:
        raise CheckpointError(f"{path}: {name}.{unknown[0]} is not known; expected {listed}.")


def _number(path: Path, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise CheckpointError(f"{path}: {name} is {value!r:.60}, expected a number above 0.")
    return value
