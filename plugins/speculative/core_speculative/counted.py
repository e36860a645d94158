"""The arguments of draft heads, of which there are only so many.

Owns: `CountedArguments` and their check. Never does: import torch or the table of families. Called by: manifests of heads.
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
    """Raises UserError where more drafts are wanted than heads give. what: says what there are `most` of."""
    if wanted > most:
        raise UserError(
            f"--speculative-config.num_speculative_tokens {wanted}: the draft has {most} {what}; expected at most as many."
        )
