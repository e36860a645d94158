"""The arguments of the `suffix` proposer.

Owns: their defaults and ranges. Never does: propose. Called by: the manifest, the proposer.
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class SuffixArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `suffix` under `--speculative-config`."""

    suffix_decoding_max_tree_depth: Annotated[
        int,
        msgspec.Meta(
            ge=1, le=256, description="Most tokens of the words that are compared and the drafts behind them."
        ),
    ] = 24
    suffix_decoding_max_cached_requests: Annotated[
        int,
        msgspec.Meta(ge=0, le=1 << 24, description="Answers that later requests get drafts from. 0: none."),
    ] = 10_000
    suffix_decoding_max_cached_tokens: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1 << 26,
            description="Tokens of these answers, about 350 bytes of memory each; the oldest go first.",
        ),
    ] = 1 << 18
    suffix_decoding_max_spec_factor: Annotated[
        float, msgspec.Meta(ge=0, le=256, description="Most drafts for each token of the words that were found again.")
    ] = 1.0
    suffix_decoding_min_token_prob: Annotated[
        float, msgspec.Meta(ge=0, le=1, description="Least share of the places found at which a draft was right.")
    ] = 0.1
