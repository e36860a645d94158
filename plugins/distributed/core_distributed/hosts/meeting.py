"""Where the processes of an engine's hosts find each other.

Owns: `Meeting`, which every process of an engine has, and the ports of its wires. Never does: open a socket.
Called by: the first node (makes it), the groups of ranks.
"""

from __future__ import annotations

from typing import Final

import msgspec

SILENCE_SHARE: Final = 0.75
"""Share of `--distributed-timeout-seconds` after which a silent host counts as gone, before its ranks do."""
MOST_SILENCE_S: Final = 10.0


class Meeting(msgspec.Struct, frozen=True):
    """One engine on several hosts.

    addresses: of each host, on the route to the first one.
    port: of the first host's watch; those of wires follow.
    session: number of this engine; messages of others are dropped.
    key_file: file with the secret, on this host; None: nothing is protected.
    """

    addresses: list[str]
    port: int
    session: bytes
    key_file: str | None = None


def silence_of(timeout_s: float) -> float:
    """Return the seconds after which a silent host counts as gone. timeout_s: patience with a rank in a step."""
    return min(timeout_s * SILENCE_SHARE, MOST_SILENCE_S)
