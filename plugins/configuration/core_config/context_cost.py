"""What ranks that divide keys by positions exchange, on paper. Torch-free.

Owns: the formulas. Never does: communicate. Called by: `layout_cost`.

An answer's token has one query for each head. In each layer, a rank sends it to the others, and gets records of its own queries
back: one for each span of 128 keys and head. The keys of a prompt's chunk are gathered instead where they are fewer bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from core.api.specs import AttentionSpec, LatentSpec, MixerSpec
from core_config.rules.context import SPAN
from core_config.stages.memory import human_bytes
from core_runtime.specs.decoder_spec import DecoderSpec

FLOAT_BYTES: Final = 4
HEAD_FLOATS: Final = 2
"""Numbers of a record before its sums."""
LANES: Final = 16


def token_traffic(mixers: Sequence[MixerSpec], spans: int) -> tuple[int, int, int]:
    """Return messages, bytes of queries and bytes of records that a rank sends to each other one for a token of an answer.

    mixers: what a rank holds of each layer. spans: of the keys that the rank with most of them has.
    Layers with a window are left out: they gather the few keys that a query sees.
    """
    messages = queries = records = 0
    for mixer in mixers:
        if isinstance(mixer, LatentSpec):
            width, messages = mixer.rank + mixer.rope_size, messages + 3
            values = mixer.rank
        elif isinstance(mixer, AttentionSpec) and mixer.window is None:
            width, messages = mixer.head_size, messages + 2
            values = mixer.head_size_v
        else:
            continue
        record = HEAD_FLOATS + -(-values // LANES) * LANES
        queries += FLOAT_BYTES * mixer.num_heads * width
        records += FLOAT_BYTES * mixer.num_heads * record * spans
    return messages, queries, records


def context_notes(local: DecoderSpec, size: int, block_size: int) -> list[str]:
    """Return what a token of an answer adds to a step, in at most one sentence. size: ranks that divide a block."""
    if size == 1:
        return []
    piece = block_size // size
    messages, queries, records = token_traffic(local.mixers, piece // SPAN)
    return [
        f"--decode-context-parallel-size {size}: a rank stores {piece} of {block_size} tokens. For a token of an answer it "
        f"sends {messages} messages with {human_bytes(queries)} of queries to each other rank, and {human_bytes(records)} of "
        f"records for each {block_size} tokens of context, which are not in the figures above"
    ]
