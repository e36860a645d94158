"""The work of one token, summed over the parts of a decoder.

Owns: the sums over a decoder's matrices, experts and keys. Never does: measure, read a weight, or plan memory (what is
stored is another number: a token reads one row of the embedding, and some of the experts). Called by: resolve, for `core
bench card` and `--enable-mfu-metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from core.api.errors import UserError
from core.api.specs import KV_TYPES, DensePlan, LatentSpec, LayerSpec, StateSpec, Unsupported
from core_config.stages.memory import ITEM_BYTES, Plan
from core_config.token_work import KeyWork, Matrices, TokenWork
from core_runtime.specs.decoder_spec import DecoderSpec


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
        nbytes, window = KV_TYPES[stored].token_bytes(mixer), mixer.window
        if isinstance(mixer, LatentSpec) and mixer.index is not None:
            # The index reads its keys of all tokens, attention those that it chooses.
            index, window = mixer.index, mixer.index.top_k
            of_index = mixer.index_size * max(KV_TYPES[stored].item_bytes, 2)
            nbytes -= of_index
            if of_index:
                yield KeyWork(None, of_index, index.num_heads * index.head_size)
        yield KeyWork(window, nbytes, mixer.num_heads * sizes)
