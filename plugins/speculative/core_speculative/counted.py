"""The arguments of draft heads, whose number limits the drafts.

Owns: `CountedArguments` and their check. Never does: import torch or the table of families. Called by: manifests of
heads.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from core.api.errors import UserError


class CountedArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of heads, each of which gives one draft."""

    num_speculative_tokens: Annotated[
        int, msgspec.Meta(ge=1, description="Drafts a step, at most as many as there are heads.")
    ] = 1


def check_count(wanted: int, most: int, what: str) -> None:
    """Raise UserError when more drafts are requested than there are heads. what: noun for the `most` items."""
    if wanted > most:
        raise UserError(
            f"--speculative-config.num_speculative_tokens {wanted}: the draft has {most} {what}; expected at most as many."
        )
