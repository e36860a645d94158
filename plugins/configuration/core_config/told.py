"""What outputs may carry besides tokens, by the argument that asks for it.

Owns: these names. Never does: compute anything. Called by: the rules, and the construction of the model's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from core_tokens.answer_facts import ROUTED_EXPERTS, SAMPLING_MASK

TOLD: Mapping[str, str] = MappingProxyType(
    {"return_sampling_mask": SAMPLING_MASK, "enable_return_routed_experts": ROUTED_EXPERTS}
)
"""Values of `ModelConfig.tells` by argument."""
