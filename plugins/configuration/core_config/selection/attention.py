"""The choice of the attention backend for one kind of layers.

Owns: that stage. Never does: know a layout of the cache. Called by: the configuration, once per kind of layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.errors import UserError
from core.api.specs import AttentionQuery, StateQuery
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core.plugin.rehearsal import Call
from core_config.selection.ranking import (
    Check,
    Choice,
    belongs_to_platform,
    explicit,
    losses,
    no_reasons,
    order_of,
    ranked,
)
from core_config.selection.reasons import attention_reasons, state_reasons


def select_attention(
    registry: PluginRegistry,
    name: str | None,
    query: AttentionQuery | StateQuery,
    preference: Sequence[str],
    preferred_by: str,
    package: str = "",
    wanted: Check = no_reasons,
) -> Choice:
    """Choose the backend of one layer kind. Raises UserError or PluginError when none can serve it.

    name:       the backend that the user named; None: the best one.
    preference: names that the platform prefers, best first.
    package:    the platform's distribution.
    wanted:     returns reasons against a backend that the user did not name.
    """
    label = f"attention.{query.spec.kind}"

    def check(manifest: Manifest) -> Sequence[object]:
        return backend_reasons(manifest, query)

    if name is not None:
        return explicit(registry, "attention", label, name, check, f"--attention-backend {name}")
    order = order_of(preference)
    choice = ranked(
        registry,
        "attention",
        label,
        lambda manifest: wanted(manifest) or check(manifest),
        lambda found: f"preferred by platform {preferred_by}" if found in order else "highest priority that fits",
        order=order,
        belongs=belongs_to_platform(registry, "attention", order, package),
        calls=[Call.of("core_supports", query=query)],
    )
    if not choice.manifests:
        raise UserError(f"{label}: no attention backend can serve this model. {losses(choice.selection)}")
    return choice


def backend_reasons(manifest: Manifest, query: AttentionQuery | StateQuery) -> Sequence[object]:
    """Return why a backend cannot serve a kind of layers: what it declares, then what it answers."""
    declared = manifest.spec
    reasons = state_reasons(declared, query) if isinstance(query, StateQuery) else attention_reasons(declared, query)
    answered: Sequence[object] = reasons or manifest.call("core_supports", query=query)
    return answered
