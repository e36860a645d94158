"""Conversion of the `prompt_embeds` of a body into prompts.

Owns: base64, and size limits before anything is allocated beyond the body: a file of a few bytes may claim any shape.
Never does: import torch, or unpickle. Called by: `core_apis.prepare.preparation`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from core.api.errors import CheckpointError, RequestError
from core_apis.prepare.prepared import PreparationSettings, Prompt
from core_frontend.prompts.prompt_embeds import KEY, PLACEHOLDER, PromptEmbeds, check_served, check_shape
from core_runtime.specs.checkpoint import ITEM_BYTES

NUMBER_BYTES = 4


def embedded_prompts(given: Sequence[str], settings: PreparationSettings) -> list[Prompt]:
    """Return the prompts, in order. given: base64 of files with a tensor each. Raises RequestError."""
    if given:
        check_served(settings.embedding_size)
    room = settings.limits.max_body_size
    prompts: list[Prompt] = []
    for text in given:
        embeds = _embeds(text, settings, room)
        room -= len(embeds.data)
        prompts.append(Prompt(None, [PLACEHOLDER] * embeds.num_tokens, embeds=embeds))
    return prompts


def _embeds(text: str, settings: PreparationSettings, room: int) -> PromptEmbeds:
    """Decode one prompt. room: limit on the bytes of its numbers."""
    from core_runtime.weights.sent_tensor import (
        sent_tensor,  # imports numpy, which most processes that read requests do not need
    )

    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise RequestError(
            f"{KEY} is no base64; expected that of a tensor in a file of torch.save or safetensors.", param=KEY
        ) from None
    try:
        tensor = sent_tensor(KEY, data)
    except CheckpointError as error:
        raise RequestError(str(error), param=KEY) from None
    num_tokens, size = check_shape(tensor.shape, settings.embedding_size, settings.max_model_len)
    # Without this limit a small body could cause a lot of work.
    if num_tokens * size * ITEM_BYTES[tensor.dtype] > len(data):
        raise RequestError(
            f"{KEY} has the shape {tensor.shape}, but its file has {len(data)} bytes, as a tensor has whose rows are one; send "
            "tensor.contiguous().",
            param=KEY,
        )
    if num_tokens * size * NUMBER_BYTES > room:
        raise RequestError(
            f"{KEY} has more numbers in all than {settings.limits.max_body_size} bytes hold as float32 (--max-body-size); send "
            "fewer prompts at once, or raise it.",
            param=KEY,
        )
    return PromptEmbeds.of(tensor.floats().reshape(num_tokens, size))
