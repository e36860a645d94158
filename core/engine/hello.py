"""The first message of both ends of a connection, which names the protocol's version.

Owns: the version of the protocol and its check. Never does: send. Called by: both ends, before they decode anything.

A client's first message is its greeting; the engine answers with its own. Major versions must be equal; minor ones may
differ (`core.api.messages` lists which change raises which).
"""

from __future__ import annotations

import re

MAJOR, MINOR = 2, 9
GREETING = b"core-engine %d.%d" % (MAJOR, MINOR)

_FORM = re.compile(rb"core-engine (\d{1,9})\.(\d{1,9})")


def greeting_problem(greeting: bytes, peer: str) -> str:
    """Return why a peer with this greeting is incompatible, as a sentence, or an empty string. peer: `engine` or `client`."""
    words = _FORM.fullmatch(greeting)
    if words is None:
        return f"The {peer} greeted with {greeting[:80]!r}; expected {GREETING!r}."
    if int(words[1]) != MAJOR:
        theirs = f"{int(words[1])}.{int(words[2])}"
        return (
            f"The {peer} speaks version {theirs} of the engine protocol and this end {MAJOR}.{MINOR}; the first numbers must "
            "be equal. Install the same version of core at both ends."
        )
    return ""
