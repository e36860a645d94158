"""Division of a model: the part that one of several ranks holds, as a smaller model. Torch-free.

Owns: how each field of a `DecoderSpec` is divided. Never does: cut a weight (the loading does).
Called by: `DecoderSpec.local`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from core.api.errors import UserError
from core.api.specs import LatentSpec
from core_runtime.specs.block_spec import BlockSpec, ExpertsSpec, HeadsSpec, MLPSpec
from core_runtime.specs.decoder_shape import DecoderShape
from core_runtime.specs.expert_placement import HeldExperts
from core_runtime.specs.model_part import Part, local_mixer
from core_runtime.specs.shares import share_of

Shape = TypeVar("Shape", bound=DecoderShape)


def local_spec(spec: Shape, part: Part) -> Shape:
    """Return the model of a rank. Raises UserError if it cannot be divided this way."""
    if not 0 <= part.rank < part.size:
        raise UserError(f"rank {part.rank} of {part.size} parts: expected 0 to {part.size - 1}")
    if part.blocks is not None:
        start, stop = part.blocks
        spec = _stage(spec, start, stop)
    return spec if part.size == 1 else _divided(spec, part)


def _stage(spec: Shape, start: int, stop: int) -> Shape:
    """Return some blocks; the embedding belongs to the very first one, the head to the last."""
    count = len(spec.blocks)
    if not 0 <= start < stop <= count:
        raise UserError(f"blocks {start} to {stop}: expected a range within the model's {count} blocks")
    problem = _torn(spec, start, stop)
    if problem:
        raise UserError(f"blocks {start} to {stop}: {problem}")
    return msgspec.structs.replace(
        spec,
        blocks=spec.blocks[start:stop],
        first_block=spec.first_block + start,
        holds_embedding=spec.holds_embedding and start == 0,
        holds_head=spec.holds_head and stop == count,
    )


def _torn(spec: Shape, start: int, stop: int) -> str:
    """Return what some blocks would need of others that another rank holds; empty: nothing."""
    one_stage = "use one stage (--pipeline-parallel-size 1)"
    blocks = spec.blocks[start:stop]
    is_part = len(blocks) < len(spec.blocks)
    if spec.layer_inputs is not None and is_part:
        return (
            "embeddings for each layer are computed with the first block, and every rank would need them; " + one_stage
        )
    if is_part and any(block.aside for block in spec.blocks):
        return f"later blocks read the embeddings again, which every rank would need; {one_stage}"
    return _torn_from_earlier(blocks, one_stage) or _torn_at_an_end(spec, start, stop)


def _torn_from_earlier(blocks: Sequence[BlockSpec], one_stage: str) -> str:
    """Return what some blocks use of those before them; empty: nothing. one_stage: what to do about it."""
    heads = [block.heads for block in blocks if block.heads is not None]
    if not {one.borrows for one in heads} - {""} <= {one.lends for one in heads}:
        return f"they use keys and values of earlier blocks, which the same rank must hold; {one_stage}"
    kept = {name for block in blocks for name in block.keeps_as}
    if not {name for block in blocks for name, _ in block.blends} <= kept:
        return f"they use the residual stream of earlier blocks, which the same rank must hold; {one_stage}"
    return ""


def _torn_at_an_end(spec: Shape, start: int, stop: int) -> str:
    """Return what the first or the last block shares with its neighbour; empty: nothing."""
    elsewhere = "which the same rank must hold; divide the model elsewhere"
    first, last = spec.blocks[start].mixer, spec.blocks[stop - 1].experts
    if isinstance(first, LatentSpec) and first.index is not None and first.index.reuses:
        return f"block {start} reads the keys that the index of an earlier block chooses, {elsewhere}"
    if last is not None and last.late:
        return f"the output of the experts of block {stop - 1} is added after block {stop}, {elsewhere}"
    return ""


def _divided(spec: Shape, part: Part) -> Shape:
    """Return the rank's part of each layer."""
    _check_divisible(spec, part.size)
    blocks = [_block(block, part) for block in spec.blocks]
    mlp = spec.mlp
    if any(spec.block_mlp(index) is spec.mlp for index in range(len(spec.blocks))):
        mlp = _mlp(mlp, part.size)
    tokens = part.vocabulary(spec.vocab_size)
    return msgspec.structs.replace(
        spec,
        blocks=tuple(blocks),
        heads=_heads(spec.heads, part),
        mlp=mlp,
        vocab_size=tokens.stop - tokens.start,
        vocab_start=tokens.start,
    )


def _check_divisible(spec: DecoderShape, size: int) -> None:
    """Raise UserError for parts of a model that no rank can compute alone."""
    if spec.layer_inputs is not None:
        raise UserError(
            f"a model of family {spec.family} has embeddings for each layer, and cannot be divided into {size} parts; use one"
        )
    refused = f"a model of family {spec.family} cannot be divided into {size} parts"
    if any(block.aside for block in spec.blocks):
        raise UserError(f"{refused}: small matrices belong to uses of shared blocks; use one part")
    for heads in [spec.heads, *(block.heads for block in spec.blocks if block.heads is not None)]:
        if heads.norm is not None and heads.norm.over == "all":
            raise UserError(f"{refused}: its queries and keys are normalized over all heads; use one part")
        if heads.query_rank:
            raise UserError(f"{refused}: its queries share a latent, which every rank would need; use one part")
        if heads.out_norm is not None:
            raise UserError(f"{refused}: the output of its heads is normalized; use one part")
    for mlp in [spec.mlp, *(block.mlp for block in spec.blocks if block.mlp is not None)]:
        if mlp.inner_norm is not None:
            raise UserError(f"{refused}: the inner numbers of its MLPs are normalized; use one part")


def _heads(heads: HeadsSpec, part: Part) -> HeadsSpec:
    """Return the options of a rank's heads: the slope of each."""
    count = len(heads.slopes)
    mine = part.slice_of(count, count // part.size) if count else slice(0)
    return msgspec.structs.replace(heads, slopes=heads.slopes[mine])


def _block(block: BlockSpec, part: Part) -> BlockSpec:
    """Return the rank's heads, inner sizes and experts of one block."""
    mixer = None if block.mixer is None else local_mixer(block.mixer, part.size)
    beside = None if block.beside is None else local_mixer(block.beside, part.size)
    experts = None if block.experts is None else _experts(block.experts, part)
    mlp = None if block.mlp is None else _mlp(block.mlp, part.size)
    heads = None if block.heads is None else _heads(block.heads, part)
    return msgspec.structs.replace(block, mixer=mixer, beside=beside, experts=experts, mlp=mlp, heads=heads)


def _mlp(mlp: MLPSpec, size: int) -> MLPSpec:
    inner = share_of(mlp.size, size, "inner numbers of an MLP (intermediate_size)")
    return msgspec.structs.replace(mlp, size=inner)


def _experts(experts: ExpertsSpec, part: Part) -> ExpertsSpec:
    """Return the rank's experts, and its part of the shared expert."""
    if experts.identities:
        raise UserError(
            f"a router with {experts.identities} choices that return their input cannot be divided into {part.size} "
            "parts; use one part"
        )
    if experts.beside:
        raise UserError(
            f"experts beside an MLP, whose outputs are normalized one by one, cannot be divided into {part.size} parts; "
            "use one part"
        )
    held = HeldExperts(part.rank, part.size, experts.count, part.experts)
    held.check()
    shared = share_of(experts.shared_intermediate_size, part.size, "inner numbers of the shared expert")
    return msgspec.structs.replace(experts, held=held, shared_intermediate_size=shared)
