"""The declaration of a torchao checkpoint. Torch-free.

Owns: the lists of used and neutral keys, with reasons. Never does: look at a tensor. Called by: the manifest. Source:
transformers' `TorchAoConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core_quantization.declared.refusal import known_keys

USED: Final = ("quant_method",)
_HEADERS: Final = "the headers of the files say which matrices are packed, and how"
NEUTRAL: Final = {
    "include_input_output_embeddings": _HEADERS,
    "modules_to_not_convert": _HEADERS,
    "quant_type": _HEADERS,
    "quant_type_kwargs": _HEADERS,
    "untie_embedding_weights": "the model's configuration says whether the head is the embedding",
}


def check_declaration(found: Mapping[str, Any]) -> None:
    """Check a declaration. Raises Refusal for an unknown key."""
    known_keys("", found, USED, NEUTRAL)
