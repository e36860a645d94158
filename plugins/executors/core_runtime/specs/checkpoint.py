"""The description of a checkpoint, as a loader gives it before any weight is read.

Owns: `CheckpointManifest`; its parts are in files of their own, and are taken from here as well. Never does: read files.
Called by: loaders (they build manifests), config (facts, memory plan), models (configuration).
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.api.checkpoint_facts import CheckpointFacts, FileFacts
from core.api.pooling import PoolingKind
from core.api.weights import TensorInfo
from core_runtime.specs.declaration import find_declaration, method_of
from core_tokens.tokenizer_source import TokenizerSource, Vocabulary

__all__ = [
    "ITEM_BYTES",
    "CheckpointFacts",
    "CheckpointManifest",
    "FileFacts",
    "TensorInfo",
    "TokenizerSource",
    "Vocabulary",
]

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
    "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
"""Bytes of an element of plain types; packed types, such as those of GGUF, are not listed."""


class CheckpointManifest(msgspec.Struct, frozen=True):
    """Everything about a checkpoint but its weights.

    ref:        the user's name for it. format: the loader's name of the format (`gguf`, `safetensors`, `dummy`).
    files:      absolute paths. tensors: by canonical name.
    config:     the model's configuration in the style of Hugging Face's `config.json` (translated when the format has
                its own metadata); always holds `model_type`.
    generation: settings in the style of `generation_config.json`: `eos_token_id` (int or list), `temperature`, ...
    metadata:   further facts about the tensors in all files, as strings by name.
    pooling:    kind of pooling, if the format gives one; None: it does not.
    """

    ref: str
    format: str
    files: list[str]
    tensors: dict[str, TensorInfo]
    config: dict[str, Any]
    tokenizer: TokenizerSource
    generation: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    pooling: PoolingKind | None = None

    def facts(self) -> CheckpointFacts:
        """Return the short form that the selection of plugins uses."""
        declaration = find_declaration(self.config)
        return CheckpointFacts(
            ref=self.ref,
            format=self.format,
            model_type=str(self.config.get("model_type", "")),
            architectures=tuple(self.config.get("architectures") or ()),
            quantization=method_of(declaration),
            tensor_dtypes=tuple(sorted({info.dtype for info in self.tensors.values()})),
            config=self.config,
            declaration=declaration or {},
        )
