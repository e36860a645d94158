"""Keys of a prompt's beginnings, by which fronts find the engine that has them cached.

Owns: `prefix_keys`. Never does: know blocks or engines. Called by: the group of engines.

The keys do not depend on the process: every front computes the same ones.
"""

from __future__ import annotations

import hashlib
from array import array

from core.api.messages import EngineRequest

SHORTEST = 16
"""Tokens of the shortest beginning with a key; each further one is twice as long."""
LONGEST = 32_768
HEAD = 512
"""Most tokens of the beginning that names the home of a prompt."""
KEY_BYTES = 8


def prefix_keys(request: EngineRequest) -> tuple[list[int], list[int], int]:
    """Return the keys of a prompt's beginnings, the lengths of these in tokens, and which of them names the home.

    Prompts that share no cache (other tenant, salt or adapter) share no key.
    """
    namespace = "\0".join((request.tenant, request.cache_salt or "", request.adapter))
    hashed = hashlib.blake2b(namespace.encode(), digest_size=KEY_BYTES)
    tokens = memoryview(array("i", request.prompt_token_ids[:LONGEST])).cast("B")
    ends = [SHORTEST]
    while ends[-1] * 2 <= min(len(request.prompt_token_ids), LONGEST):
        ends.append(ends[-1] * 2)
    keys: list[int] = []
    begin = 0
    for end in ends:
        hashed.update(tokens[begin * 4 : end * 4])
        keys.append(int.from_bytes(hashed.digest(), "little"))
        begin = end
    head = max(index for index, end in enumerate(ends) if end <= max(HEAD, SHORTEST))
    return keys, ends, head
