"""What the tokens of a request depend on besides the request.

Owns: `origin_of`. Never does: compare. Called by: `DurableStreams`.
"""

from __future__ import annotations

import hashlib

import msgspec

from core.api.config import ModelConfig
from core.kv.fingerprint import files_digest


def origin_of(model: ModelConfig, numerics: str) -> str:
    """A digest of the model, its weight files and the engine's numerics: where it differs, an answer cannot be continued.

    Of each weight file the name, the size, the time of its last change and samples count. The length of the context is not
    part of it: a request that no longer fits is refused as any other.
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
