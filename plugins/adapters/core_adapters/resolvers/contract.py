"""The contract of resolvers.

Owns: `Resolver`. Never does: find anything. Called by: plugins of kind `resolver` (implement it), servers (call it).
"""

from __future__ import annotations

from typing import Protocol


class Resolver(Protocol):
    """Kind `resolver`: finds adapters by name. `core_load` finds in `context.options` `directory`: that of `--lora-directory`,
    absolute, or None.
    """

    def find(self, name: str) -> str | None:
        """Return the path of the adapter that a request names, absolute; None: there is none.

        Called in a thread, and not waited for after `--lora-resolver-timeout`. The name comes from a client. An exception is
        logged, and counts as None.
        """
        ...
