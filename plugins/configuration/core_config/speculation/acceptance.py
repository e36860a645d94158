"""The rule by which drafts are accepted, from `--speculative-config`.

Owns: the keys and names of the rules of acceptance. Never does: judge whether values are sound (`core_config.rules`
does), or accept drafts. Called by: the rules, the engine's configuration, waivers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api.config import AcceptanceConfig, AcceptanceMethod

METHOD_KEYS: Final = ("rejection_sample_method", "acceptance_method")
"""Keys that name the rule. The first is vLLM's, the second that of its first engine."""

METHODS: Final[dict[str, AcceptanceMethod | None]] = {
    "strict": None,
    "probabilistic": "rejection",
    "standard": "rejection",
    "rejection_sampler": "rejection",
    "typical": "typical",
    "typical_acceptance_sampler": "typical",
    "synthetic": "synthetic",
}
"""Names of the rules, as vLLM has or had them → rule; None: a draft is kept when the sampler draws the same token."""

TYPICAL_KEYS: Final = ("posterior_threshold", "posterior_alpha")
SYNTHETIC_KEYS: Final = ("synthetic_acceptance_rates", "synthetic_acceptance_length")
KEYS: Final = (*METHOD_KEYS, *TYPICAL_KEYS, *SYNTHETIC_KEYS)
"""All keys of `--speculative-config` that belong to acceptance."""

SENTENCES: Final[dict[AcceptanceMethod, str]] = {
    "rejection": "drafts are accepted by rejection sampling: which tokens come depends on what is drafted, their "
    "probabilities do not",
    "typical": "drafts are accepted when they are typical: which tokens come depends on what is drafted, and they are "
    "likelier ones",
    "synthetic": "drafts are accepted at a given rate, whatever the model says: answers are wrong",
}
WAY_OUT: Final = "; --speculative-config.rejection_sample_method strict gives the tokens of a run without drafts"


def method_of(speculation: Mapping[str, Any]) -> AcceptanceMethod | None:
    """Return the rule that the user names; None: no rule is named, or a name that a rule of the configuration reports
    as wrong.
    """
    for key in METHOD_KEYS:
        name = speculation.get(key)
        if isinstance(name, str):
            return METHODS.get(name)
    return None


def acceptance_config(speculation: Mapping[str, Any]) -> AcceptanceConfig | None:
    """Return the rule with its numbers, which have been checked before.

    speculation: `--speculative-config` with underscores in its keys, derived values included.
    """
    method = method_of(speculation)
    if method is None:
        return None
    if method == "typical":
        threshold = speculation["posterior_threshold"]
        alpha = speculation["posterior_alpha"]
        return AcceptanceConfig(method=method, threshold=threshold, alpha=alpha)
    if method == "synthetic":
        return AcceptanceConfig(method=method, rates=_rates(speculation))
    return AcceptanceConfig(method=method)


def acceptance_waiver(config: AcceptanceConfig | None) -> list[str]:
    """Return, as a sentence, the guarantee that the rule waives; empty when it waives none."""
    if config is None:
        return []
    return [f"speculation: {SENTENCES[config.method]}{WAY_OUT}"]


def _rates(speculation: Mapping[str, Any]) -> tuple[float, ...]:
    """Return, for each position, how often all drafts up to it are accepted, from the rates or from the tokens a step
    that the user gives.
    """
    rates = speculation.get("synthetic_acceptance_rates")
    if rates is not None:
        return tuple(float(rate) for rate in rates)
    num_drafts = speculation["num_speculative_tokens"]
    accepted = speculation["synthetic_acceptance_length"] - 1.0
    return tuple(min(max(accepted - nth, 0.0), 1.0) for nth in range(num_drafts))
