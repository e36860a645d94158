"""Drafts that were trained to guess all their tokens in one pass (PARD, arXiv 2504.18583; P-EAGLE).

Owns: the argument that asks for it, and the token that stands for those not known yet. Never does: import torch.
Called by: manifests of proposers whose drafts may have been.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from core.api.errors import UserError

TOKEN_KEYS: Final = ("pard_token", "mask_token_id", "ptd_token_id")
"""Keys of a draft's configuration, the first of which counts."""


class ParallelArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of such proposers."""

    parallel_drafting: Annotated[
        bool | None,
        msgspec.Meta(description="All drafts come from one pass. Unset: where the checkpoint was trained for it."),
    ] = None


def parallel_token(
    hf_config: Mapping[str, Any], arguments: ParallelArguments | None, vocab_size: int, *, trained: bool
) -> int | None:
    """The token for those that are not known yet; None: one pass for each draft.

    trained: whether the checkpoint shows that it was trained for it. Raises UserError where there is no such token.
    """
    asked = None if arguments is None else arguments.parallel_drafting
    if asked is False or (asked is None and not trained):
        return None
    for key in TOKEN_KEYS:
        token = hf_config.get(key)
        if isinstance(token, int) and 0 <= token < vocab_size:
            return token
    raise UserError(
        "--speculative-config.parallel_drafting: the draft has no token for those that are not known yet; expected one of "
        f"{', '.join(TOKEN_KEYS)} in its configuration, with a number below {vocab_size}. Leave it out, or set it to false."
    )
