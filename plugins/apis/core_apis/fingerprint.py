"""The `system_fingerprint` of answers, as --fingerprint-mode asks for it.

Owns: its text. Never does: compute numbers. Called by: the context of the server.
"""

from __future__ import annotations

import hashlib

import msgspec

from core.version import __version__
from core_apis.engine_protocol import ServingEngine

SHOWN = 8
"""Digits of the hash."""


def fingerprint_of(engine: ServingEngine, mode: str, value: str | None) -> str | None:
    """Return the fingerprint in a mode other than `weights`; None: answers have none.

    The hash changes with the version, the model, the numerics of the engine and the version of its weights: answers with equal
    hashes come from engines whose numbers are equal.
    """
    if mode in ("none", "custom"):
        return value if mode == "custom" else None
    config = engine.config
    facts = (__version__, config.model.model, str(engine.ready.numerics), engine.stats.weight_version)
    digest = hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:SHOWN]
    engines = f"-dp{config.data_parallel_size}" if mode == "full" and config.data_parallel_size > 1 else ""
    return f"core-{__version__}{engines}-{digest}"
