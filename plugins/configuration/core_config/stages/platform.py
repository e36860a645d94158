"""The stage that chooses the platform and applies its proposals.

Owns: that stage. Never does: open a device. Called by: resolve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from core.plugin.hookspecs import PlatformView
from core_config.arguments import foreign
from core_config.locating.files import host_memory
from core_config.selection import select_platform
from core_config.stages.attempt import Attempt
from core_config.stages.checkpoint import Checkpoint
from core_config.stages.chosen import ChosenPlatform
from core_config.stages.settings import PREFERENCES

PURPOSES: Final = {"throughput": "llm", "interactivity": "serve"}
"""Mode of performance → the command whose batch sizes a platform proposes for it."""


def choose_platform(attempt: Attempt, checkpoint: Checkpoint | None) -> ChosenPlatform:
    """Choose the platform, and let it propose values for open arguments. Raises UserError or PluginError.

    checkpoint: None when the model was not found; the platform is still chosen.
    """
    settings = attempt.settings
    facts = attempt.facts
    named = settings["device"]
    if named.lower() == "auto":
        named = None
    choice, device = select_platform(attempt.plugins, named)
    attempt.chosen.stages["platform"] = choice
    manifest = choice.manifest
    settings.derive("device", device.name, choice.selection.why)
    view = PlatformView(
        context=PURPOSES.get(settings["performance_mode"], facts.context),
        facts=checkpoint.manifest.facts() if checkpoint else None,
        arguments=foreign.WithNeutral(settings.values()),
        set_by_user=tuple(name for name in settings.rows if settings.user_set(name)),
        device=device,
    )
    proposals = manifest.call("core_propose", view=view) or {}
    settings.propose(proposals, f"platform {manifest.row.name}")
    wishes: dict[str, Sequence[str]] = {}
    for name in PREFERENCES:
        if name in proposals:
            wishes[name] = _names(proposals[name].value)
    facts.device = device
    facts.platform = manifest.spec
    facts.host_memory = host_memory()
    attempt.run_rules("platform")
    return ChosenPlatform(manifest, device, wishes)


def _names(proposed: Any) -> list[str]:
    """Return proposed names as a list: a platform may give one name alone."""
    if isinstance(proposed, str):
        return [proposed]
    return list(proposed or ())
