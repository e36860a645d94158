"""Requests that end because the keys and values of their prompts do not come from another engine.

Owns: `LoadFailures`: which requests these are, and what their clients are told. Never does: end one, or decide that pages do
not come. Called by: the observer of handoffs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from core.api.config import EngineConfig
from core_kv_connectors.handoff.roles import FAIL, RECOMPUTE, fails_loads

NO_CONNECTOR: Final = "no_connector"
WHY_NO_CLAIM: Final[Mapping[str, str]] = MappingProxyType({
    NO_CONNECTOR: "the connector tcp has failed here, see the log",
    "unknown_peer": "it is not one of --kv-peers",
    "resting": "it has failed three times in a row, and is left alone for a while",
    "busy": "too many requests wait for pages",
})  # fmt: skip
"""What `Handoff.claim` says → why a request has no claim."""


class LoadFailures:
    """The failed requests of one engine. Without the policy `fail` there are none, since all prompts can be computed here."""

    def __init__(self, config: EngineConfig) -> None:
        self.is_policy = fails_loads(config)
        self._sentences: dict[str, str] = {}

    def add(self, name: str, peer: str, why: str) -> bool:
        """Note why pages of a request do not come from a peer; False, and no change, where it is to be computed."""
        if self.is_policy:
            self._sentences[name] = (
                f"The keys and values of this prompt could not be loaded from {peer}: {why}. "
                f"--kv-transfer-config.kv_load_failure_policy {FAIL} ends such requests; {RECOMPUTE} computes them here."
            )
        return self.is_policy

    def sentence(self, name: str) -> str | None:
        """Return the error of a request; None: it has not failed."""
        return self._sentences.get(name)

    def names(self) -> list[str]:
        """Return the names of all failed requests."""
        return list(self._sentences)

    def forget(self, name: str) -> None:
        """Forget a request; unknown names are ignored."""
        self._sentences.pop(name, None)
