"""Changes of the residual stream around blocks, in families where it is more than one stream of sums.

Owns: streams that are kept and blended, results that are put aside, rows that are added, and where late experts are added.
Never does: run a usual half of a block. Called by: the decoder.

Rows are copied by a kernel, as torch's own copies would be missing from a recorded step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from core_runtime.layers.kernels import KernelSet
from core_runtime.models.decoder_weights import BlockWeights
from core_runtime.models.halves import Half
from core_runtime.models.step_views import StepViews
from core_runtime.specs.decoder_spec import BlockSpec, DecoderSpec


def late_experts(spec: DecoderSpec) -> frozenset[int]:
    """Return the indices of blocks behind which the output of the experts of the block before is added."""
    experts = [block.experts for block in spec.blocks]
    return frozenset(index + 1 for index, found in enumerate(experts) if found is not None and found.late)


def keep_and_blend(kernels: KernelSet, spec: BlockSpec, views: StepViews) -> None:
    """Keep the residual stream for later blocks, and blend it with the stream that an earlier one kept."""
    for name in spec.keeps_as:
        kernels.take_rows(views.residual, views.every_row, views.kept[name])
    for name, share in spec.blends:
        kernels.take_rows(views.kept[name], views.every_row, views.branch)
        kernels.scale(views.branch, share)
        kernels.scale(views.residual, 1.0 - share)
        kernels.add(views.branch, views.residual)


def put_aside(kernels: KernelSet, block: BlockWeights, views: StepViews, positions: Tensor, metadata: Any) -> None:
    """Compute a block whose result is added to the input of the next one alone; see `BlockSpec.aside`.

    metadata: of its mixer.
    """
    assert block.mlp is not None, "such a block has both halves"
    stream, entry = views.pair.chunk(2, dim=1)
    kernels.take_rows(views.residual, views.every_row, stream)
    kernels.take_rows(views.entry, views.every_row, entry)
    block.norms["input"](views.pair, views.pair)
    block.mixers[0](views.pair, positions, metadata, views.branch, accumulate=False)
    block.norms["pre_mlp"](views.branch, views.normed)
    block.mlp(views.normed, views, views.branch, accumulate=False)
    block.linears["layer_aside"](views.branch, views.aside)


def add_rows(views: StepViews, rows: Tensor, values: Tensor, following: Half) -> None:
    """Add values, float32 [R, H], to rows (int64 [R]) of the residual stream. following: the half that reads it next."""
    stream = views.residual
    changed = stream[rows] + values.to(stream.dtype)
    stream[rows] = changed
    if following.is_ready and following.norm is not None:  # normalized before these rows were added
        normed = torch.empty_like(changed)
        following.norm.of_rows(stream, rows, normed)
        views.normed[rows] = normed
