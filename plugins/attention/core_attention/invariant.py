"""The argument of libraries of attention that can keep a sequence's bits apart from its batch. Torch-free.

Owns: declarations only. Called by: the manifests that declare `invariant_on_request`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's own arguments."""

    invariant: Annotated[
        bool,
        msgspec.Meta(
            description="a sequence's keys are divided among programs in a way that depends on the sequence alone, so that "
            "its bits do not depend on the batch; --batch-invariant sets it"
        ),
    ] = False
