"""The layers that the backend `fla` can serve. Torch-free.

Owns: these limits, and the library's version. Never does: import the library. Called by: the manifest, the backend.
"""

from __future__ import annotations

import importlib.metadata
from typing import Final

from core.api.reason import Reason
from core.api.specs import StateQuery
from core_attention.triton.limits import unsupported_state

MODULE: Final = "fla"
PACKAGE: Final = "fla-core"
LEAST_VERSION: Final = (0, 6)
"""The first version known to take the lengths of sequences from the host, and states with values first."""
STATE_OPS: Final = ("gated_delta",)


def version() -> str | None:
    """Return the library's version; None without package metadata, as when it was built in place."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def lacking_state(query: StateQuery) -> list[Reason]:
    """Return the reasons why a layer is not supported; empty means supported."""
    reasons = unsupported_state(query)
    if query.spec.op not in STATE_OPS:
        reasons.append(Reason("state_op", " or ".join(STATE_OPS), query.spec.op))
    number = version()
    if number is not None and tuple(map(int, number.split(".")[:2])) < LEAST_VERSION:
        needed = ".".join(map(str, LEAST_VERSION))
        reasons.append(Reason("version", f"{PACKAGE} {needed} or newer", number, f"pip install --upgrade {PACKAGE}"))
    return reasons
