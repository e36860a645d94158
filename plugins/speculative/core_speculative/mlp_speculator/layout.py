"""The layout of MLP speculators (arXiv 2404.19124), as published for IBM's accelerators.

Owns: their tensor names and sizes, and which tensors are required. Never does: compute, import torch. Called by: the
manifest, the heads.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from core.api.errors import UserError
from core.plugin.hookspecs import DraftContext
from core_runtime.models.configuration import configuration
from core_speculative.drafts import check_hidden_size, check_vocabulary, target_decoder

PREFIX: Final = "speculator."
"""Prefix of every name in some checkpoints."""
PARTS: Final = ("emb.{}.weight", "proj.{}.weight", "ln.{}.weight", "ln.{}.bias", "head.{}.weight")
"""Tensors of a draft position, in the order of `StageNames`."""
EPS: Final = 1e-6


class StageNames(NamedTuple):
    """The tensors of one draft position: its embedding, projection of the state, norm with weight and bias, and head."""

    embedding: str
    projection: str
    norm: str
    norm_bias: str
    head: str


class MLPShape(NamedTuple):
    """One speculator.

    stages: tensors of each draft position.
    sizes: vocabulary size, size of the target's hidden state, and of the speculator's state.
    scales_input: whether the hidden state is normalized and divided by the root of 2.
    state_weight, token_weight: weights of the state and the token in their sum, whose variance stays that of the state.
    """

    stages: tuple[StageNames, ...]
    sizes: tuple[int, int, int]
    scales_input: bool
    state_weight: float
    token_weight: float

    @property
    def names(self) -> list[str]:
        """Return every tensor that is read."""
        found: list[str] = []
        for stage in self.stages:
            found += stage
        return found

    @property
    def expected(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor."""
        vocab_size, taken, inner = self.sizes
        shapes: dict[str, tuple[int, ...]] = {}
        for index, stage in enumerate(self.stages):
            shapes[stage.embedding] = (vocab_size, inner)
            shapes[stage.projection] = (inner, inner if index else taken)
            shapes[stage.norm] = (inner,)
            shapes[stage.norm_bias] = (inner,)
            shapes[stage.head] = (vocab_size, inner)
        return shapes


def mlp_shape(context: DraftContext) -> MLPShape:
    """Return the speculator of a checkpoint. Raises UserError where it does not fit the target."""
    target = target_decoder(context)
    config = configuration(context.hf_config)
    check_hidden_size(context.hf_config, target, config.positive("emb_dim"))
    check_vocabulary(config.positive("vocab_size"), target)
    return shape_of(context.tensors, context.hf_config)


def shape_of(tensors: Collection[str], hf_config: Mapping[str, Any]) -> MLPShape:
    """Return the speculator that consists of tensors of these names. Raises UserError for a missing one."""
    config = configuration(hf_config)
    count = config.positive("n_predict")
    inner = config.count("inner_dim", 0) or config.positive("emb_dim")
    stages: list[StageNames] = []
    tied = config.flag("tie_weights")
    for index in range(count):
        stages.append(StageNames(*(_name(tensors, part, index, tied=tied) for part in PARTS)))
    state_weight = 0.5 ** (0.5 / count)
    token_weight = math.sqrt((1 - state_weight**2) * (inner / 2))
    sizes = config.positive("vocab_size"), config.positive("emb_dim"), inner
    return MLPShape(tuple(stages), sizes, config.flag("scale_input"), state_weight, token_weight)


def _name(tensors: Collection[str], part: str, index: int, *, tied: bool) -> str:
    """Return a draft position's tensor under the checkpoint's name. Tied tensors may be stored only once, under a
    smaller number.

    Raises UserError when there is none.
    """
    name = part.format(index)
    for number in range(index, -1 if tied else index - 1, -1):
        usual = part.format(number)
        for own in (usual, PREFIX + usual):
            if own in tensors:
                return own
    raise UserError(
        f"--speculative-config.model: the checkpoint has no tensor '{name}', which an MLP speculator needs; it is incomplete."
    )
