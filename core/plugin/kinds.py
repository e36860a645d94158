"""The table of plugin kinds. A further kind is a further row, never another mechanism.

Owns: `Kind` and `KINDS`. Never does: import plugins. Called by: discovery, selection, arguments, `core plugins`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of plugin.

    name:            word used in tables and on the command line.
    group:           entry-point group; entry-point names are the argument's values.
    argument:        engine argument that chooses by name, or None.
    config_argument: engine argument that carries the chosen plugin's own arguments, or None.
    by_name:         whether that argument has a mapping for each plugin, by its name: several are chosen.
    count:           how many are chosen, for people.
    replaceable:     whether another one, or the reference operations, can do the same work: one that fails although nobody
                     named it is left out, and the rest is resolved again.
    """

    name: str
    group: str
    argument: str | None
    config_argument: str | None
    count: str
    replaceable: bool = False
    by_name: bool = False


KINDS: tuple[Kind, ...] = (
    Kind("quantization", "core.quantization", "quantization", "quantization_config", "one or none"),
    Kind(
        "attention",
        "core.attention",
        "attention_backend",
        "attention_config",
        "one for each layer kind",
        replaceable=True,
        by_name=True,
    ),
    Kind("platform", "core.platforms", "device", "platform_config", "one", replaceable=True),
    Kind("loader", "core.loaders", "load_format", "model_loader_extra_config", "one"),
    Kind("speculative", "core.speculative", "speculative_config", "speculative_config", "one or none"),
    Kind("kernels", "core.kernels", "kernels", "kernels_config", "many", replaceable=True, by_name=True),
    Kind("policy", "core.policies", "scheduling_policy", None, "one"),
    Kind("model", "core.models", None, None, "one or none"),
    Kind("grammar", "core.grammars", None, None, "many, one for each request"),
    Kind("response_format", "core.response_formats", None, None, "many"),
    Kind("logits_processor", "core.logits_processors", "logits_processors", None, "many"),
    Kind("api", "core.apis", None, None, "many"),
)

RESERVED_NAMES: frozenset[str] = frozenset({"auto", "none"})


def kind_named(name: str) -> Kind:
    """The kind called `name`. Raises KeyError."""
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise KeyError(name)


def normalize(name: str) -> str:
    """Plugin names compare without regard to case and to `-` or `_`."""
    return name.strip().lower().replace("-", "_")
