"""Operations that a model calls in addition to those that every model calls.

Owns: that list. Never does: compute. Called by: the decoder, to check that a runtime can record all of them.
"""

from __future__ import annotations

from core_runtime.layers import activations
from core_runtime.layers.features import routing_feature
from core_runtime.specs.decoder_spec import DecoderSpec, NormSpec


def needs(spec: DecoderSpec) -> set[str]:
    """Return operations and features, by the names of `KernelSet.recorded`."""
    found: set[str] = set()
    if _centres(spec.norm):
        found.add("layer_norm")
    for index, block in enumerate(spec.blocks):
        found |= _around_heads(spec, index)
        rotary = block.rotary_size
        if rotary and any(getattr(mixer, "head_size", rotary) != rotary for mixer in block.mixers):
            found.add("partial_rotary")
        mlp = spec.block_mlp(index) or spec.shared_mlp(index)
        if mlp is not None:
            found |= _activates(mlp.activation, gated=mlp.gated)
        if spec.block_heads(index).gate:
            found.add("open_gate")
        if block.experts is not None:
            found.add("route")
            if block.experts.shared_gate:
                found.add("open_gate")
            routing = routing_feature(block.experts.routing)
            found |= set() if routing is None else {routing}
    return found


def _around_heads(spec: DecoderSpec, index: int) -> set[str]:
    """Return the operations for the norms of queries and keys."""
    heads = spec.block_heads(index)
    if heads.norm is None:
        return set()
    found = set()
    if _centres(heads.norm.norm):
        found.add("layer_norm" if heads.norm.over == "all" else "layer_norm_heads")
    if heads.norm.over == "heads":
        found.add("norms_by_head")
    return found


def _activates(activation: str, *, gated: bool) -> set[str]:
    kind, *_ = activation.split(":")
    found = set() if kind in activations.BASIC else {kind}
    return found if gated else {*found, "activate"}


def _centres(norm: NormSpec) -> bool:
    return norm.kind == "layer"
