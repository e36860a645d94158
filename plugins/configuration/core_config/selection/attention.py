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
from core_config.selection.ranking import Choice, belongs_to_platform, explicit, losses, order_of, ranked
from core_config.selection.reasons import attention_reasons, state_reasons


def select_attention(
    registry: PluginRegistry,
    name: str | None,
    query: AttentionQuery | StateQuery,
    preference: Sequence[str],
    preferred_by: str,
    package: str = "",
) -> Choice:
    """Choose the backend of one layer kind. Raises UserError or PluginError when none can serve it.

    name:       the backend that the user named; None: the best one.
    preference: names that the platform prefers, best first.
    package:    the platform's distribution.
    """
    label = f"attention.{query.spec.kind}"

    def check(manifest: Manifest) -> Sequence[object]:
        if isinstance(query, StateQuery):
            reasons = state_reasons(manifest.spec, query)
        else:
            reasons = attention_reasons(manifest.spec, query)
        return reasons or manifest.call("core_supports", query=query)

    if name is not None:
        return explicit(registry, "attention", label, name, check, f"--attention-backend {name}")
    order = order_of(preference)
    choice = ranked(
        registry,
        "attention",
        label,
        check,
        lambda found: f"preferred by platform {preferred_by}" if found in order else "highest priority that fits",
        order=order,
        belongs=belongs_to_platform(registry, "attention", order, package),
        calls=[Call.of("core_supports", query=query)],
    )
    if not choice.manifests:
        raise UserError(f"{label}: no attention backend can serve this model. {losses(choice.selection)}")
    return choice
