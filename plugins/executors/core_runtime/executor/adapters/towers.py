"""The part of an adapter that changes a tower or its connector, which are not the executor's.

Owns: `AdaptedTower`, what the executor asks of whoever computes the tower; dividing an adapter. Never does: compute with it.
Called by: the reading of adapters; the observer of media implements it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from core.api.errors import UserError
from core_runtime.models.families.wrappers import other_module
from core_runtime.weights.adapter_contents import AdapterContents, ModuleChange


class TowerPart(NamedTuple):
    """What a tower keeps of an adapter: its largest rank, and its bytes."""

    rank: int = 0
    nbytes: int = 0


class AdaptedTower(Protocol):
    """A tower that adapters change."""

    def keep(self, name: str, digest: str, changes: Sequence[ModuleChange]) -> TowerPart:
        """Check the changes and keep them, until `drop`; called from another thread. Raises UserError.

        name: the adapter's, for messages.
        """
        ...

    def drop(self, digest: str) -> None:
        """Forget an adapter."""
        ...


def divided(name: str, contents: AdapterContents) -> tuple[AdapterContents, tuple[ModuleChange, ...]]:
    """Return an adapter without the changes of a tower and its connector, and these. Raises UserError."""
    others = tuple(change for change in contents.changes if other_module(f"{change.module}.weight") is not None)
    if others and contents.invocation_tokens:
        raise UserError(
            f"Adapter '{name}' is activated by tokens of the prompt (alora_invocation_tokens) and changes {others[0].module}, "
            "which is computed before any token; train it without modules of the tower."
        )
    kept = {change.module for change in others}
    text = tuple(change for change in contents.changes if change.module not in kept)
    return replace(contents, changes=text), others
