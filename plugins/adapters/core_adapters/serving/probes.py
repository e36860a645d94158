"""The probes of adapters for the state canary.

Owns: `probe_adapters`: the comparison of what each adapter computes at a start with what it computed at the first one. Never
does: read an adapter, or judge the base model (`core_observers.engine.canary` does). Called by: the adapters' observer.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from core.engine.observer import Engine
from core_adapters.serving.record import KeptAdapter
from core_observers.engine.canary import (
    compare_probe,
    probe_request,
    probed,
    read_record,
    record_key,
    write_record,
)


def probe_adapters(engine: Engine, adapters: Iterable[KeptAdapter]) -> None:
    """Compute the canary's probe with each adapter, and compare tokens and log-probabilities with those of its record.

    The first engine that has an adapter of this digest writes the record. Called before the first request, when the canary has
    checked the base model. Raises StateError for other results, UserError for a file that is no record.
    """
    config = engine.config
    assert config.state_canary is not None, "the caller has looked"
    numerics = engine.executor.numerics
    key = record_key(config, numerics)
    for kept in adapters:
        digest = kept.facts.digest
        path = Path(config.state_canary) / f"{key}-{digest[:16]}.json"
        request = msgspec.structs.replace(
            probe_request(config), request_id=f"core-state-canary-{digest:.16}", adapter=digest
        )
        found = probed(engine.compute(request), numerics)
        known = read_record(path)
        if known is None:
            write_record(path, found)
        else:
            compare_probe(found, known, path, f"with adapter '{kept.source.name}' the probe's")
