"""A model's shape for display: numbers, and a paragraph that describes them.

Owns: both. Never does: read a configuration. Called by: the report about a checkpoint.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from core.api.specs import KV_TYPES, STATE_DTYPE, AttentionSpec, LatentSpec, MixerSpec, StateSpec
from core_config.stages.memory import human_bytes
from core_runtime.specs.block_spec import ExpertsSpec
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.kv_types import kv_name
from core_runtime.specs.rope_spec import RopeSpec


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a checkpoint, from shapes alone.

    layers: kind → number of layers.
    heads, experts, states, rope: one description for each kind of layer.
    parameters: number of parameters in the tensors that are read.
    weights_bytes: bytes of the same tensors, as the checkpoint stores them.
    kv_dtype: type of the KV cache that the next number refers to.
    kv_bytes_per_token: bytes of keys and values in all layers that store some.
    kv_readers: number of layers that read those of an earlier one instead.
    state_bytes: bytes of one sequence's states.
    """

    layers: dict[str, int]
    hidden_size: int
    heads: list[str]
    experts: list[str]
    states: list[str]
    rope: list[str]
    vocab_size: int
    tied: bool
    max_position: int
    parameters: int
    weights_bytes: int
    kv_dtype: str
    kv_bytes_per_token: int
    kv_readers: int
    state_bytes: int

    def paragraph(self) -> str:
        """Return a paragraph with all of it."""
        kinds = ", ".join(f"{count} with {kind}" for kind, count in self.layers.items())
        sentences = [f"Layers of width {self.hidden_size}: {kinds}."]
        details = [*self.heads, *self.states, *self.experts, *self.rope]
        sentences += [f"{detail[0].upper()}{detail[1:]}." for detail in details]
        head = "tied to the output head" if self.tied else "with an output head of its own"
        sentences.append(
            f"Vocabulary of {self.vocab_size} tokens, {head}; sequences of up to {self.max_position} tokens."
        )
        sentences.append(f"{_millions(self.parameters)} parameters in {human_bytes(self.weights_bytes)}.")
        cache = f"{human_bytes(self.kv_bytes_per_token)} of keys and values a token in {self.kv_dtype}"
        if self.kv_readers:
            layers = "layer reads" if self.kv_readers == 1 else "layers read"
            cache += f" (the last {self.kv_readers} {layers} those of earlier ones)"
        if self.state_bytes:
            cache += f", {human_bytes(self.state_bytes)} of states a sequence"
        sentences.append(f"{cache}.")
        return " ".join(sentences)


def model_shape(
    spec: DecoderSpec,
    weights_bytes: int,
    kv_dtype: str,
    layer_dtypes: Sequence[str] = (),
    state_dtype: str = STATE_DTYPE,
) -> ModelShape:
    """Return the shape of a model. weights_bytes: bytes of its tensors in the checkpoint. kv_dtype: a key of
    `KV_TYPES`. layer_dtypes: those of the mixers, where they differ. state_dtype: of states.
    """
    layers: Counter[str] = Counter()
    heads: dict[str, None] = {}  # dicts as sets that keep the order
    states: dict[str, None] = {}
    experts: dict[str, None] = {}
    rope: dict[str, None] = {}
    kv_bytes = 0
    state_bytes = 0
    dtypes = layer_dtypes or [kv_dtype] * len(spec.mixers)
    lenders = spec.lenders
    place = 0
    for index, block in enumerate(spec.blocks):
        parts = [_kind(mixer) for mixer in block.mixers]
        if block.experts is not None:
            parts.append("experts")
            experts[_experts(block.experts)] = None
        elif spec.block_mlp(index) is not None:
            parts.append("an MLP")
        layers[" and ".join(parts) or "nothing"] += 1
        for mixer in block.mixers:
            if isinstance(mixer, StateSpec):
                states[_state(mixer, state_dtype)] = None
                state_bytes += mixer.bytes_in(state_dtype)
            else:
                heads[_heads(mixer)] = None
                kv_bytes += 0 if place in lenders else KV_TYPES[dtypes[place]].token_bytes(mixer)
            place += 1
        if block.rope is not None:
            rope[_rope(block.rope, block.rotary_size)] = None
    parameters = sum(math.prod(shape) for shape in spec.tensor_shapes().values())
    return ModelShape(
        layers=dict(layers),
        hidden_size=spec.hidden_size,
        heads=list(heads),
        experts=list(experts),
        states=list(states),
        rope=list(rope),
        vocab_size=spec.vocab_size,
        tied=spec.tied,
        max_position=spec.max_position,
        parameters=parameters,
        weights_bytes=weights_bytes,
        kv_dtype=kv_name(kv_dtype, layer_dtypes),
        kv_bytes_per_token=kv_bytes,
        kv_readers=len(lenders),
        state_bytes=state_bytes,
    )


def _kind(mixer: MixerSpec) -> str:
    if isinstance(mixer, StateSpec):
        return f"{mixer.op} states"
    if isinstance(mixer, LatentSpec):
        return "latent attention" if mixer.index is None else f"latent attention over the best {mixer.index.top_k} keys"
    if not mixer.causal:
        return "attention in both directions"
    if mixer.window is None:
        return "full attention"
    if mixer.chunked:
        return f"attention in chunks of {mixer.window} tokens"
    return f"a window of {mixer.window} tokens"


def _heads(mixer: AttentionSpec | LatentSpec) -> str:
    if isinstance(mixer, LatentSpec):
        return f"{mixer.num_heads} heads on a latent of {mixer.rank} numbers and a rotated key of {mixer.rope_size}"
    sizes = str(mixer.head_size)
    if mixer.head_size_v != mixer.head_size:
        sizes += f" (values of {mixer.head_size_v})"
    return f"{mixer.num_heads} query heads and {mixer.num_kv_heads} key-value heads of {sizes}"


def _state(mixer: StateSpec, dtype: str) -> str:
    return f"{mixer.op} keeps {human_bytes(mixer.bytes_in(dtype))} a layer and sequence"


def _experts(experts: ExpertsSpec) -> str:
    shared = experts.shared_intermediate_size
    beside = f", and one of {shared} that every token takes" if shared else ""
    top_k = experts.routing.top_k
    return f"{experts.count} experts of {experts.intermediate_size}, of which a token takes {top_k}{beside}"


def _rope(rope: RopeSpec, size: int) -> str:
    scaling = "" if rope.rope_type == "default" else f", {rope.rope_type} scaling"
    return f"rotary embedding of {size} numbers with theta {rope.theta:g}{scaling}"


def _millions(count: int) -> str:
    """Return a number in the form `1.54 billion`."""
    if count >= 10**9:
        return f"{count / 10**9:.2f} billion"
    if count >= 10**6:
        return f"{count / 10**6:.1f} million"
    return str(count)
