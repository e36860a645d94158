"""An adapter of the model: where it comes from, and what the engine must know of it.

Owns: `AdapterSource`, `AdapterFacts`, `AdaptersConfig`. Never does: read an adapter. Called by: the configuration, the parts
that serve adapters, and executors that compute with them.
"""

from __future__ import annotations

import msgspec


class AdapterSource(msgspec.Struct, frozen=True):
    """Where an adapter is read from.

    name: for messages and metrics; keys of the cache never depend on it.
    path: a directory or a file, absolute.
    """

    name: str
    path: str


class AdaptersConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of an engine that serves adapters; the names are those of the arguments.

    max_loras:      different adapters of a step.
    max_cpu_loras:  adapters that are kept, at least `max_loras`.
    target_modules: the only modules that are adapted; empty: those of each adapter.
    modules:        adapters that are read before the first request.
    default:        name of the adapter of requests that name the base model; empty: none.
    """

    max_loras: int = 1
    max_cpu_loras: int = 1
    max_lora_rank: int = 16
    lora_dtype: str = "auto"
    target_modules: tuple[str, ...] = ()
    modules: tuple[AdapterSource, ...] = ()
    default: str = ""


class AdapterFacts(msgspec.Struct, frozen=True):
    """What an executor found when it read an adapter.

    digest:            sha256 of configuration and tensors, in hexadecimal digits: the adapter's identity.
    rank:              the largest rank of its matrices.
    nbytes:            memory that it takes while it is resident.
    invocation_tokens: an activated adapter is used from the last occurrence of these token ids on; empty: from the start.
    """

    digest: str
    rank: int
    nbytes: int
    invocation_tokens: tuple[int, ...] = ()
