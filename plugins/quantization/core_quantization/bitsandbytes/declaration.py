"""The declaration of a bitsandbytes checkpoint. Torch-free.

Owns: the lists of used and neutral keys, with reasons. Never does: look at a tensor. Called by: the manifest. Source:
transformers' `BitsAndBytesConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core_quantization.declared.refusal import Refusal, known_keys

USED: Final = ("bnb_4bit_quant_storage", "load_in_4bit", "load_in_8bit", "quant_method")
_TENSORS: Final = "the tensors say how each module is packed"
NEUTRAL: Final = {
    "_load_in_4bit": _TENSORS,
    "_load_in_8bit": _TENSORS,
    "bnb_4bit_compute_dtype": "the engine's dtype is that of the run",
    "bnb_4bit_quant_type": _TENSORS,
    "bnb_4bit_use_double_quant": _TENSORS,
    "llm_int8_enable_fp32_cpu_offload": "it is about where another engine keeps modules",
    "llm_int8_has_fp16_weight": "packed weights are served as they are",
    "llm_int8_skip_modules": _TENSORS,
    "llm_int8_threshold": "inputs have scales of their own for each group; no column is taken out",
    "modules_to_not_convert": _TENSORS,
}


def check_declaration(found: Mapping[str, Any]) -> None:
    """Check a declaration. Raises Refusal with the key that is not served."""
    known_keys("", found, USED, NEUTRAL)
    storage = found.get("bnb_4bit_quant_storage") or "uint8"
    if storage != "uint8":
        raise Refusal("bnb_4bit_quant_storage", "uint8", storage, "save the checkpoint again with this storage")
    if not (found.get("load_in_4bit") or found.get("load_in_8bit")):
        raise Refusal("load_in_4bit", "true, or load_in_8bit true", found.get("load_in_4bit"), "remove the declaration")
