"""The work of one token, from shapes alone: bytes that it reads, and numbers that it is multiplied with.

Owns: the sums over a decoder's matrices, experts and keys. Never does: measure, read a weight, or plan memory (what is
stored is another number: a token reads one row of the embedding, and some of the experts). Called by: resolve, for `core
bench card`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from core.api.errors import UserError
from core.api.specs import KV_TYPES, DensePlan, LatentSpec, LayerSpec, StateSpec, Unsupported
from core_config.stages.memory import ITEM_BYTES, Plan
from core_runtime.specs.decoder_spec import DecoderSpec


class Matrices(msgspec.Struct, frozen=True):
    """Matrices that a token is multiplied with. nbytes: as they are stored. numbers: of weights, each multiplied once."""

    nbytes: float = 0.0
    numbers: int = 0

    def __add__(self, other: Matrices) -> Matrices:
        return Matrices(self.nbytes + other.nbytes, self.numbers + other.numbers)

    def times(self, count: int) -> Matrices:
        """Return as many of them."""
        return Matrices(self.nbytes * count, self.numbers * count)


class KeyWork(msgspec.Struct, frozen=True):
    """The keys of one layer.

    window: the largest number of keys that a token reads; None: all. nbytes: of a key and its value. numbers: that are
    multiplied for each, in all heads.
    """

    window: int | None
    nbytes: int
    numbers: int


class TokenWork(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one token.

    blocks: matrices of all layers without experts. experts: those of the experts that a token takes. head: the output head.
    one_expert: one expert of each layer. num_experts, num_choices: of the layer with the most.
    keys: layers with keys. vocab_size: tokens.
    """

    blocks: Matrices
    experts: Matrices
    head: Matrices
    one_expert: Matrices
    num_experts: int
    num_choices: int
    keys: tuple[KeyWork, ...]
    vocab_size: int

    @property
    def weights(self) -> Matrices:
        """Return all matrices that a token is multiplied with."""
        return self.blocks + self.experts + self.head

    def key_bytes(self, length: int) -> int:
        """Return the bytes of keys and values that a token reads behind `length` others."""
        return sum(layer.nbytes * min(length, layer.window or length) for layer in self.keys)

    def prompt_numbers(self, length: int) -> int:
        """Return the multiplications of a prompt of `length` tokens, of which one has logits."""
        matrices = (self.blocks.numbers + self.experts.numbers) * length + self.head.numbers
        seen = 0
        for layer in self.keys:
            window = min(length, layer.window or length)
            seen += layer.numbers * (window * (window + 1) // 2 + (length - window) * window)
        return matrices + seen


def token_work(
    spec: DecoderSpec, plan: Plan | None, dtype: str, kv_dtype: str, layer_dtypes: Sequence[str] = ()
) -> TokenWork:
    """Return the work of a token.

    plan: of the quantization method; None without one. dtype: of plain matrices. kv_dtype: of keys and values.
    layer_dtypes: those of the mixers, where they differ. Raises UserError where the method does not support a part.
    """

    def summed(parts: Iterable[LayerSpec]) -> Matrices:
        return sum((_matrix(part, plan, dtype) for part in parts), Matrices())

    blocks = summed(spec.projections().values())
    experts, one_expert = Matrices(), Matrices()
    choices = []
    for index, block in enumerate(spec.blocks):
        for parts in spec.block_linears(index).values():
            blocks += summed(parts)
        found = spec.expert_linears(index)
        if found and block.experts is not None:
            one = summed((*found[0].gate_up, *found[0].down))
            one_expert += one
            experts += one.times(block.experts.routing.top_k)
            choices.append((block.experts.count, block.experts.routing.top_k))
    for half in spec.halves():
        numbers = math.prod(half.shape)
        blocks += Matrices(numbers * ITEM_BYTES[dtype], numbers)
    num_experts, num_choices = max(choices, default=(0, 0))
    return TokenWork(
        blocks=blocks,
        experts=experts,
        head=summed([spec.head()]),
        one_expert=one_expert,
        num_experts=num_experts,
        num_choices=num_choices,
        keys=tuple(_keys(spec, kv_dtype, layer_dtypes)),
        vocab_size=spec.vocab_size,
    )


def _matrix(part: LayerSpec, plan: Plan | None, dtype: str) -> Matrices:
    numbers = part.shape[-2] * part.shape[-1]
    answer = DensePlan((part.name,)) if plan is None else plan(part)
    if isinstance(answer, Unsupported):
        raise UserError(f"The quantization method cannot serve {part.name}: {answer.reason}.")
    nbytes = numbers * ITEM_BYTES[dtype] if isinstance(answer, DensePlan) else answer.nbytes
    return Matrices(nbytes, numbers)


def _keys(spec: DecoderSpec, kv_dtype: str, layer_dtypes: Sequence[str]) -> Iterable[KeyWork]:
    """Yield the layers that have keys; states are read whole in any case, and are small."""
    dtypes = layer_dtypes or [kv_dtype] * len(spec.mixers)
    for mixer, stored in zip(spec.mixers, dtypes, strict=False):
        if isinstance(mixer, StateSpec):
            continue
        _, keys, values = mixer.cached
        # Heads of a latent share one key, whose first part is the value too.
        sizes = keys + (mixer.rank if isinstance(mixer, LatentSpec) else values)
        yield KeyWork(mixer.window, KV_TYPES[stored].token_bytes(mixer), mixer.num_heads * sizes)
