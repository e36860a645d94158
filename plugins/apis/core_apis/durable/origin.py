"""Everything besides the request that its tokens depend on.

Owns: `origin_of`. Never does: compare. Called by: `DurableStreams`.
"""

from __future__ import annotations

import hashlib

import msgspec

from core.api.config import ModelConfig
from core.kv.fingerprint import files_digest


def origin_of(model: ModelConfig, numerics: str) -> str:
    """Return a digest of the model, its weight files and the engine's numerics. If it differs, an answer cannot be
    continued.

    Each weight file contributes its name, size, modification time and samples of its content. The context length is not
    included: a request that no longer fits is refused like any other.
    """
    facts = [
        model.model,
        model.tokenizer,
        model.tokenizer_mode,
        model.dtype,
        model.vocab_size,
        model.hf_config,
        model.implementation,
        model.numerics,
        numerics,
        files_digest(model.model),
    ]
    plain = msgspec.json.encode(facts, order="sorted")
    return hashlib.sha256(plain).hexdigest()
