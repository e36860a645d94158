"""What a new engine must have in common with those that it joins.

Owns: the comparisons. Never does: bring an engine to the state of others (the recovery does), or start one. Called by: whoever
has a group grow.
"""

from __future__ import annotations

from core.api.errors import EngineDeadError
from core.api.messages import EngineReady
from core_frontend.adapters import names_of
from core_frontend.recovery import SAME
from core_supervision.link.zmq_client import ZmqClient


def check_same(ready: EngineReady, others: EngineReady) -> None:
    """Raise EngineDeadError for an engine to which no request of the others could move."""
    for name in SAME:
        now, was = getattr(ready, name), getattr(others, name)
        if now != was:
            raise EngineDeadError(f"A new engine has another {name} ({now!r}, the others have {was!r}).")


async def check_adapters(client: ZmqClient, other: ZmqClient) -> None:
    """Raise EngineDeadError where an adapter of another engine is missing, or another one: it was sent from memory that is
    gone, or its files have changed.
    """
    own = {name: row.digest for name, row in names_of(await client.call("list_adapters")).items()}
    for name, row in names_of(await other.call("list_adapters")).items():
        if own.get(name) != row.digest:
            how = "cannot read" if name not in own else "reads something else as"
            raise EngineDeadError(
                f"A new engine {how} the adapter '{name}' that the others have loaded; load it again from files, in place, or "
                "unload it."
            )
