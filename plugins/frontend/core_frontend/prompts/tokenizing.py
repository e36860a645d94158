"""The tokenizer of a resolved configuration.

Owns: the choice between the checkpoint's tokenizer, another one, and none; texts that are tokenized together. Called
by: `LLM` and `AsyncEngine`.
"""

from __future__ import annotations

import logging

from core.api.config import EngineConfig
from core.api.errors import UserError
from core_frontend.prompts.prompt_parser import PromptInput
from core_tokens.plugged import plug_of
from core_tokens.tokenizer import Tokenizer
from core_tokens.tokenizer_source import TokenizerSource

logger = logging.getLogger(__name__)


def load_tokenizer(source: TokenizerSource, config: EngineConfig) -> Tokenizer | None:
    """Return the tokenizer that the user named, else the checkpoint's, else None. Raises UserError if it cannot be
    read.

    It is also None if the user wants none. Raises PluginError if a plugin is at fault.
    """
    model = config.model
    plug = plug_of(config.plugins)
    if model.skip_tokenizer:
        return None
    if plug is None and model.tokenizer is None and source.directory is None and source.vocabulary is None:
        return None
    tokenizer = Tokenizer.from_source(source, model.tokenizer, model.tokenizer_mode, plug)
    if model.pooling is not None and model.pooling.lower_case:
        tokenizer.read_small_letters()
    tokenizer.allows_control = model.allow_control_tokens
    said = tokens_beyond(tokenizer, model.vocab_size)
    if said:
        logger.warning("%s", said)
    return tokenizer


def tokens_beyond(tokenizer: Tokenizer, vocab_size: int) -> str:
    """Return a sentence about tokens that the tokenizer has but the model does not; empty if there are none."""
    largest = tokenizer.largest_id
    if largest < vocab_size:
        return ""
    return (
        f"the tokenizer's tokens go up to id {largest}, the model's vocabulary has {vocab_size}: requests with a token from "
        f"{vocab_size} are refused. If the tokenizer is another model's, name the right one with --tokenizer."
    )


def load_shared_tokenizer(source: TokenizerSource, config: EngineConfig) -> Tokenizer:
    """Return the tokenizer of a server, with the snapshot that its helper process will need.

    Taking the snapshot later would hold up every stream; at this time the engine is not there yet. If the user wants no
    tokenizer, it is the one that refuses texts. Raises UserError if there is none.
    """
    tokenizer = Tokenizer.absent() if config.model.skip_tokenizer else load_tokenizer(source, config)
    if tokenizer is None:
        raise UserError(
            f"The checkpoint {config.model.model!r} has no tokenizer; name one with --tokenizer, "
            "or serve token ids alone with --skip-tokenizer-init."
        )
    _ = tokenizer.snapshot
    return tokenizer


def tokenized_together(batch: list[PromptInput], tokenizer: Tokenizer | None) -> list[PromptInput]:
    """Replace texts by their tokens, with all threads of the tokenizer; other prompts are left as they are."""
    texts = [prompt for prompt in batch if isinstance(prompt, str)]
    if tokenizer is None or len(texts) < 2:
        return batch
    encoded = iter(tokenizer.encode_batch(texts))
    tokenized: list[PromptInput] = []
    for prompt in batch:
        if isinstance(prompt, str):
            tokenized.append({"prompt": prompt, "prompt_token_ids": next(encoded)})
        else:
            tokenized.append(prompt)
    return tokenized
