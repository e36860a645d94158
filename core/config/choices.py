"""The later stages: quantization, kernels, attention for each layer kind, proposer; and the table of all that was chosen.

Owns: the order of stages and which argument feeds which. Never does: rank candidates (`core.plugin.selection` does).
Called by: resolve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.api.config import PluginChoices, ResolvedPlugin
from core.api.errors import UserError, nearest
from core.api.specs import AttentionQuery, MixerSpec, StateQuery, StateSpec
from core.args.plugin_arguments import convert_struct
from core.config.settings import Settings
from core.plugin.capabilities import constraint_problems
from core.plugin.kinds import kind_named, normalize
from core.plugin.manifest import Manifest
from core.plugin.ranking import Choice, Selection
from core.plugin.registry import PluginRegistry
from core.plugin.selection import select_attention

LAYER_KINDS = ("full", "sliding", "latent", "state")


@dataclass(slots=True)
class Chosen:
    """Choices by stage, in order."""

    stages: dict[str, Choice] = field(default_factory=dict)

    def name(self, stage: str) -> str | None:
        """The one name chosen in `stage`, or None."""
        choice = self.stages.get(stage)
        return choice.selection.chosen[0] if choice is not None and choice.selection.chosen else None

    def replaceable(self) -> set[ResolvedPlugin]:
        """Rows that nobody named and whose work others can do."""
        choices = [choice for choice in self.stages.values() if choice.manifests]
        named = {row for choice in choices for row in choice.named}
        rows = {manifest.row for choice in choices for manifest in choice.manifests}
        return {row for row in rows - named if kind_named(row.kind).replaceable}

    def manifests(self) -> list[Manifest]:
        """Every chosen manifest once."""
        found = {(m.row.kind, m.row.name): m for choice in self.stages.values() for m in choice.manifests}
        return list(found.values())

    def selections(self) -> list[Selection]:
        """For people."""
        return [choice.selection for choice in self.stages.values()]


def attention_names(text: str | None) -> dict[str, str]:
    """`NAME` or `full=NAME,sliding=NAME,...` as {layer kind: name}. Raises UserError."""
    if text is None or text.lower() == "auto":
        return {}
    if "=" not in text:
        return dict.fromkeys(LAYER_KINDS, text)
    names: dict[str, str] = {}
    for part in text.split(","):
        kind, _, name = part.partition("=")
        if kind.strip() not in LAYER_KINDS or not name.strip():
            expected = f"NAME, or {','.join(f'{known}=NAME' for known in LAYER_KINDS)}"
            raise UserError(f"--attention-backend {text}: expected {expected}.{nearest(kind.strip(), LAYER_KINDS)}")
        names[kind.strip()] = name.strip()
    return names


def choose_attention(
    settings: Settings,
    registry: PluginRegistry,
    specs: Sequence[MixerSpec],
    device: str,
    platform: Manifest,
    wanted: Sequence[str],
) -> dict[str, Choice]:
    """One choice for each layer kind of the model, by `attention.KIND`. wanted: names that the platform prefers.

    Raises UserError.
    """
    named = attention_names(settings["attention_backend"])
    found: dict[str, Choice] = {}
    for index, spec in enumerate(specs):
        if spec in specs[:index]:
            continue
        query = (
            StateQuery(spec, device)
            if isinstance(spec, StateSpec)
            else AttentionQuery(spec, device, settings["kv_cache_dtype"], settings["block_size"])
        )
        row = platform.row
        choice = select_attention(registry, named.get(spec.kind), query, wanted, row.name, row.distribution)
        before = found.setdefault(f"attention.{spec.kind}", choice)
        if before.selection.chosen != choice.selection.chosen:
            pair = f"{before.selection.chosen[0]} and {choice.selection.chosen[0]}"
            raise UserError(
                f"attention.{spec.kind}: the layers need different backends, {pair}; name one that fits all."
            )
    return found


def plugin_choices(settings: Settings, registry: PluginRegistry, chosen: Chosen, problems: list[str]) -> PluginChoices:
    """The table for other processes, with every plugin's arguments checked; sentences go to `problems`."""
    arguments = _arguments(settings, registry, chosen, problems)
    for manifest in chosen.manifests():
        problems += constraint_problems(manifest.spec, manifest.row.kind, settings.values())
    attention = {kind: chosen.name(f"attention.{kind}") for kind in LAYER_KINDS}
    kernels = chosen.stages.get("kernels")
    return PluginChoices(
        loader=chosen.name("loader") or "",
        platform=chosen.name("platform") or "",
        quantization=chosen.name("quantization"),
        kernels=kernels.selection.chosen if kernels is not None else (),
        attention={kind: name for kind, name in attention.items() if name is not None},
        speculative=chosen.name("speculative"),
        model=chosen.name("model"),
        arguments={key: value for key, value in arguments.items() if value},
        table=tuple(manifest.row for manifest in chosen.manifests()),
    )


def _arguments(
    settings: Settings, registry: PluginRegistry, chosen: Chosen, problems: list[str]
) -> dict[str, dict[str, Any]]:
    """Each chosen plugin's own arguments, by `KIND.NAME`."""
    sources = {
        "loader": ("model_loader_extra_config", settings["model_loader_extra_config"]),
        "quantization": ("quantization_config", settings["quantization_config"]),
        "platform": ("platform_config", settings["platform_config"]),
        "speculative": ("speculative_config", speculative_arguments(settings, chosen)),
    }
    backends = _attention_arguments(settings, registry, chosen, problems)
    found: dict[str, dict[str, Any]] = {}
    for manifest in chosen.manifests():
        kind, name = manifest.row.kind, manifest.row.name
        if kind == "attention":
            argument, values = f"attention_config.{name}", backends.get(name, {})
        else:
            argument, values = sources.get(kind, ("", {}))
        prefix = "--" + argument.replace("_", "-", argument.partition(".")[0].count("_"))
        problems += convert_struct(manifest.spec.arguments, values, prefix)[1]
        found[f"{kind}.{name}"] = {key.replace("-", "_"): value for key, value in values.items()}
    for kind, (argument, values) in sources.items():
        if values and chosen.name(kind) is None and kind == "quantization":
            problems.append(
                f"--{argument.replace('_', '-')}: the checkpoint needs no quantization method; leave it out."
            )
    return found


def speculative_arguments(settings: Settings, chosen: Chosen) -> dict[str, Any]:
    """What `--speculative-config` holds for the method itself."""
    values = {key.replace("-", "_"): value for key, value in (settings["speculative_config"] or {}).items()}
    values.pop("method", None)
    choice = chosen.stages.get("speculative")
    struct = choice.manifests[0].spec.arguments if choice is not None and choice.manifests else None
    known = () if struct is None else struct.__struct_fields__
    if "num_speculative_tokens" not in known:
        values.pop("num_speculative_tokens", None)
    derived = settings.keys_of("speculative_config")
    return {**{key: value for key, value in derived.items() if key in known and values.get(key) is None}, **values}


def _attention_arguments(
    settings: Settings, registry: PluginRegistry, chosen: Chosen, problems: list[str]
) -> dict[str, dict[str, Any]]:
    used = {manifest.row.name for manifest in chosen.manifests() if manifest.row.kind == "attention"}
    known = {row.name for row in registry.rows("attention")}
    found: dict[str, dict[str, Any]] = {}
    for key, values in settings["attention_config"].items():
        name = normalize(key)
        if name not in known:
            listed = ", ".join(sorted(known))
            problems.append(
                f"--attention-config.{key}: no such attention backend; known: {listed}.{nearest(name, known)}"
            )
        elif not isinstance(values, Mapping):
            problems.append(f"--attention-config.{key} {values!r}: expected --attention-config.{key}.KEY VALUE.")
        elif name not in used:
            chosen_names = ", ".join(sorted(used)) or "none"
            problems.append(
                f"--attention-config.{key}: this backend is not used (chosen: {chosen_names}); leave it out."
            )
        else:
            found[name] = dict(values)
    return found
