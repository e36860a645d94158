"""What a request asks for of the keys and values of its prompt: to lease them, or to fetch them.

Owns: `KVTransfer`. Never does: read a client's words (servers do), or fetch anything. Called by: the terms of requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KVTransfer:
    """One of both.

    leases: whether the blocks of the prompt are leased to another engine once it is computed.
    source: host, port, ticket and engine_id of an engine that has leased them; None: they are computed here.
    """

    leases: bool = False
    source: Mapping[str, Any] | None = None
