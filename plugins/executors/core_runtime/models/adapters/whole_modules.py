"""The modules of which an adapter has whole tensors, since nothing can be added to their products. Torch-free.

Owns: their names and shapes: those within recurrences, which a backend computes, and the small matrices of several streams.
Never does: hold a tensor. Called by: the fitting of an adapter, and the memory plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from core.api.specs import StateSpec
from core_runtime.models.state_ops.cross_attention import CROSS_ATTENTION
from core_runtime.specs.block_parts import mixer_parts
from core_runtime.specs.decoder_spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class WholeModule:
    """One module of a block.

    name: name under which the block has its tensors, such as `x_proj`. module: its canonical name in the model.
    shape: shape of its weight.
    has_bias: whether it has a bias.
    is_recurrent: whether it lies within a recurrence, so that a sequence has one of them for all tokens of a step.
    """

    block: int
    name: str
    module: str
    shape: tuple[int, ...]
    has_bias: bool = False
    is_recurrent: bool = False


def whole_modules(spec: DecoderSpec) -> list[WholeModule]:
    """Return these modules of all blocks."""
    return [module for index in range(len(spec.blocks)) for module in _of_block(spec, index)]


def _of_block(spec: DecoderSpec, index: int) -> Iterator[WholeModule]:
    for mixer in spec.blocks[index].mixers:
        # The states of cross attention are filled before the first token, which no adapter of a step reaches.
        if not isinstance(mixer, StateSpec) or mixer.op == CROSS_ATTENTION:
            continue
        named = mixer_parts(spec, index).params
        for tensor, shape in mixer.params.items():
            name, _, field = tensor.rpartition(".")
            if name and field == "weight":
                module = named[tensor][0].removesuffix(".weight")
                yield WholeModule(index, name, module, shape, f"{name}.bias" in mixer.params, is_recurrent=True)
    for role, (tensor, shape) in spec.stream_tensors(index).items():
        if tensor.endswith(".weight"):
            yield WholeModule(index, role, tensor.removesuffix(".weight"), shape)
