"""Limits and defaults of structured outputs, from their arguments.

Owns: `StructuredOutputsConfig` and the older names of its fields. Never does: choose a plugin. Called by: choices, engine.
"""

from __future__ import annotations

from core.api.config import StructuredOutputsConfig
from core.api.errors import ConfigError
from core.args.schema import flag_of
from core_config.stages.settings import Settings, underscored
from core_grammars.names import served_backend

OLDER = ("backend", "disable_fallback", "disable_any_whitespace", "disable_additional_properties")
"""Fields that are also arguments of their own, `guided_decoding_...`."""


def structured_outputs_config(settings: Settings) -> StructuredOutputsConfig:
    """Build the config. Raises ConfigError when a field is given under both of its names."""
    values = underscored(settings["structured_outputs_config"] or {})
    problems: list[str] = []
    for name in OLDER:
        older = f"guided_decoding_{name}"
        given = settings[older]
        if given is None:
            continue
        if values.get(name, given) != given:
            newer = flag_of(f"structured_outputs_config.{name}")
            problems.append(f"{flag_of(older)} {given}: {newer} says {values[name]}; leave the older one out.")
        values[name] = given
    if problems:
        raise ConfigError(problems)
    values.pop("enable_in_reasoning", None)  # it is of the formats of answers
    backend = served_backend(values.pop("backend", ""))
    return StructuredOutputsConfig(backend=backend, **values)
