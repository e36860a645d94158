"""The configuration of a draft that the executor runs for a proposer.

Owns: `DraftConfig`, and how it is read from an `EngineConfig`, which carries it without knowing the shapes of models.
Never does: resolve or validate. Called by: configuration (writes), executor and cache keys (read).
"""

from __future__ import annotations

import msgspec

from core.api.config import EngineConfig
from core.api.model_config import ModelConfig
from core.api.plugin_choices import PluginChoices
from core.api.step_limits import StepLimits
from core_runtime.specs.draft_spec import DraftSpec


class DraftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The draft that the core runs for a proposer.

    spec:          shape of the draft; without a decoder, the plugin's own heads compute.
    model:         checkpoint and precision of the draft. `max_model_len` is the longest sequence that it drafts for; if the
                   tensors are in the target's own checkpoint, `model` is that one.
    plugins:       plugins that read and compute it, in addition to the target's.
    limits:        limits of its steps.
    in_target:     whether the tensors lie in the target's own checkpoint.
    tree:          for each draft, the index of the draft that it follows, -1: the newest token; empty: they are a chain.
    """

    spec: DraftSpec
    model: ModelConfig
    plugins: PluginChoices
    limits: StepLimits = StepLimits()
    in_target: bool = False
    tree: tuple[int, ...] = ()


def draft_of(config: EngineConfig) -> DraftConfig | None:
    """Return the draft of a configuration, converted if it came as plain values of a message; None without one.

    Raises msgspec.ValidationError for invalid values.
    """
    draft = config.draft
    if draft is None or isinstance(draft, DraftConfig):
        return draft
    return msgspec.convert(draft, DraftConfig)
