"""The layout of Medusa's heads (arXiv 2401.10774), as published by the authors and as converted by other programs.

Owns: names of their tensors, and which of them are required. Never does: compute, import torch. Called by: the
manifest, the heads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, NamedTuple

from core.api.errors import UserError
from core.plugin.hookspecs import DraftContext
from core_speculative.drafts import check_hidden_size, target_decoder

Role = Literal["weight", "bias", "head"]
NAMES: Final[tuple[tuple[str, Role], ...]] = (
    (r"(?:medusa_heads?\.)?(?P<head>\d+)\.(?P<layer>\d+)\.linear\.weight", "weight"),
    (r"(?:medusa_heads?\.)?(?P<head>\d+)\.(?P<layer>\d+)\.linear\.bias", "bias"),
    (r"(?:medusa_heads?\.)?(?P<head>\d+)\.(?P<layer>\d+)\.weight", "head"),
    (r"(?:medusa_heads?\.)?blocks\.(?P<head>\d+)\.layers\.(?P<layer>\d+)\.weight", "weight"),
    (r"(?:medusa_heads?\.)?blocks\.(?P<head>\d+)\.layers\.(?P<layer>\d+)\.bias", "bias"),
    (r"(?:medusa_heads?\.)?lm_heads\.(?P<head>\d+)\.weight", "head"),
)
"""Patterns of tensor names → role, first the authors', then vLLM's. A block is x + silu(W x + b); a head gives the
logits.
"""
TOKEN_MAP: Final = "token_map"


class HeadNames(NamedTuple):
    """The tensors of one head.

    blocks: weight and bias (or None) of each, in order.
    head: the matrix of its logits; None: the model's own head.
    """

    blocks: tuple[tuple[str, str | None], ...]
    head: str | None


class MedusaShape(NamedTuple):
    """The heads of a checkpoint.

    heads: head of each draft position.
    token_map: the tensor with the token ids of the rows of logits, or None for all tokens.
    """

    heads: tuple[HeadNames, ...]
    token_map: str | None

    @property
    def names(self) -> list[str]:
        """Return every tensor that is read."""
        found = [] if self.token_map is None else [self.token_map]
        for blocks, head in self.heads:
            for weight, bias in blocks:
                found += [weight] if bias is None else [weight, bias]
            found += [] if head is None else [head]
        return found

    def expected(self, vocab_size: int, hidden_size: int, num_tokens: int | None) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor but the map. num_tokens: tokens in the heads' own vocabulary, None for
        all.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for blocks, head in self.heads:
            for weight, bias in blocks:
                shapes[weight] = (hidden_size, hidden_size)
                if bias is not None:
                    shapes[bias] = (hidden_size,)
            if head is not None:
                shapes[head] = (num_tokens or vocab_size, hidden_size)
        return shapes


def medusa_shape(context: DraftContext) -> MedusaShape:
    """Return the heads of a draft's checkpoint. Raises UserError where it has none that fit the target."""
    target = target_decoder(context)
    hf_config = context.hf_config
    check_hidden_size(hf_config, target, int(hf_config.get("hidden_size", target.hidden_size)))
    return shape_of(context.tensors, hf_config)


def shape_of(tensors: Collection[str], hf_config: Mapping[str, Any]) -> MedusaShape:
    """Return the heads that consist of tensors of these names. Raises UserError for an incomplete one."""
    found: dict[int, dict[tuple[Role, int], str]] = {}
    for name in tensors:
        for pattern, role in NAMES:
            match = re.fullmatch(pattern, name)
            if match is None:
                continue
            layer = 0 if role == "head" else int(match["layer"])
            found.setdefault(int(match["head"]), {})[role, layer] = name
            break
    if sorted(found) != list(range(len(found))) or not found:
        raise UserError(
            "--speculative-config.model: the checkpoint has no tensors of Medusa's heads ('0.0.linear.weight', "
            "'blocks.0.layers.0.weight', ...), or not those of every head."
        )
    shared = bool(hf_config.get("original_lm_head", False))
    heads = []
    for number in range(len(found)):
        own = found[number]
        num_blocks = sum(role == "weight" for role, _ in own)
        blocks = tuple((own["weight", layer], own.get(("bias", layer))) for layer in range(num_blocks))
        head = found[0].get(("head", 0)) if shared else own.get(("head", 0))
        heads.append(HeadNames(blocks, head))
    return MedusaShape(tuple(heads), TOKEN_MAP if TOKEN_MAP in tensors else None)
