"""The tokenizer of a resolved configuration.

Owns: the choice between the checkpoint's tokenizer, another one, and none. Called by: `LLM` and `AsyncEngine`.
"""

from __future__ import annotations

from core.api.checkpoint import TokenizerSource
from core.api.config import ModelConfig
from core.tokens.tokenizer import Tokenizer


def load_tokenizer(source: TokenizerSource, model: ModelConfig) -> Tokenizer | None:
    """The tokenizer that the user named, else the checkpoint's, else None. Raises UserError when it cannot be read."""
    if model.tokenizer is None and source.directory is None and source.vocabulary is None:
        return None
    return Tokenizer.from_source(source, model.tokenizer)


def load_shared_tokenizer(source: TokenizerSource, model: ModelConfig) -> Tokenizer | None:
    """The same for a server, with the snapshot that its helper process will ask for: taking it later would hold up every
    stream, now the engine is not there yet."""
    tokenizer = load_tokenizer(source, model)
    if tokenizer is not None:
        _ = tokenizer.snapshot
    return tokenizer
