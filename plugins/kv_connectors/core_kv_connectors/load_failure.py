"""The argument `load_failure` of connectors that load pages from slow storage. Torch-free.

Owns: its values and its help. Never does: end a request. Called by: the manifests of these connectors.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

LoadFailure = Annotated[
    Literal["recompute", "fail"],
    msgspec.Meta(
        description="recompute computes a prompt whose pages are there and do not come; fail ends its request"
    ),
]
