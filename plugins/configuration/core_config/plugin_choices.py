"""The table of all chosen plugins, with every plugin's own arguments checked.

Owns: the argument that carries each plugin's own arguments. Never does: choose. Called by: engine, weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from core.api.config import PluginChoices
from core.api.errors import nearest
from core.args.plugin_arguments import convert_struct
from core.args.schema import flag_of
from core.plugin.kinds import KINDS, Kind, kind_named, normalize
from core.plugin.registry import PluginRegistry
from core_config.arguments import foreign
from core_config.numa import numa_binding
from core_config.profiler import profile_settings, profile_window
from core_config.selection.reasons import constraint_problems
from core_config.speculation import acceptance
from core_config.speculation.control import CONTROL_KEYS
from core_config.speculation.keys import is_draft_key
from core_config.stages.attention import LAYER_KINDS
from core_config.stages.chosen import Chosen
from core_config.stages.kv_transfer import named_connectors, with_own_config
from core_config.stages.settings import Settings, underscored
from core_observers.observer_settings import CRASH_DUMP, NUMA_BINDING, PROFILE_WINDOW, RECORDINGS, WORKER_EXTENSION
from core_runtime.specs.operation_order import OPERATION_ORDER, as_order
from core_runtime.specs.profile_settings import PROFILE
from core_runtime.specs.tail import TAIL
from core_runtime.specs.worker_class import EXECUTORS, WORKER_CLASS

Arguments = dict[str, Any]
NOUNS = {"attention": "attention backend", "kernels": "provider of kernels", "kv_connector": "KV connector"}
"""Display names for kinds of which several plugins are chosen."""


def plugin_choices(settings: Settings, registry: PluginRegistry, chosen: Chosen, problems: list[str]) -> PluginChoices:
    """Return the table for other processes. Sentences about plugins' arguments are added to `problems`."""
    arguments = _checked_arguments(settings, registry, chosen, problems)
    for manifest in chosen.manifests():
        problems += constraint_problems(manifest.spec, manifest.row.kind, settings.values())
    _add_settings(arguments, settings, is_sound=not problems)
    if settings["worker_cls"] != "auto":
        arguments[WORKER_CLASS] = {"cls": settings["worker_cls"]}
        problems += _worker_problems(chosen.name("executor"))
    backends = {kind: chosen.name(f"attention.{kind}") for kind in LAYER_KINDS}
    return PluginChoices(
        loader=chosen.name("loader") or "",
        platform=chosen.name("platform") or "",
        quantization=chosen.name("quantization"),
        kernels=_several(chosen, "kernels"),
        attention={kind: name for kind, name in backends.items() if name is not None},
        speculative=chosen.name("speculative"),
        model=chosen.name("model"),
        arguments={key: value for key, value in arguments.items() if value},
        table=tuple(manifest.row for manifest in chosen.manifests()),
        grammars=_several(chosen, "grammar"),
        logits_processors=_several(chosen, "logits_processor"),
        executor=chosen.name("executor") or "",
        kv_connectors=_several(chosen, "kv_connector"),
    )


def _several(chosen: Chosen, kind: str) -> tuple[str, ...]:
    """Return the names of a kind of which there may be several, in order."""
    stage = chosen.stages.get(kind)
    return () if stage is None else stage.selection.chosen


def _worker_problems(executor: str | None) -> Iterator[str]:
    """Yield a sentence if the chosen executor has no worker whose class may be given."""
    if executor not in EXECUTORS:
        names = f"{', '.join(EXECUTORS[:-1])} and {EXECUTORS[-1]}"
        yield f"--worker-cls: only the executors {names} have such a worker, not {executor}; leave it out."


def _add_settings(arguments: Arguments, settings: Settings, *, is_sound: bool) -> None:
    """Add the settings that observers and the executor read. is_sound: whether no problem was found so far."""
    if settings["worker_extension_cls"] is not None:
        arguments[WORKER_EXTENSION] = {"cls": settings["worker_extension_cls"]}
    binding = numa_binding(settings) if is_sound else None
    if binding is not None:
        arguments[NUMA_BINDING] = binding
    if settings["ir_op_priority"] and is_sound:
        arguments[OPERATION_ORDER] = as_order(settings["ir_op_priority"])
    if settings["crash_dump"] is not None:
        arguments[CRASH_DUMP] = {"directory": settings["crash_dump"]}
    if settings["cudagraph_metrics"]:
        arguments[RECORDINGS] = {"enabled": True}
    arguments[PROFILE] = msgspec.to_builtins(
        profile_settings(settings["profiler_config"], layers=settings["enable_layerwise_nvtx_tracing"])
    )
    if settings["kv_sharing_fast_prefill"]:
        arguments[TAIL] = {"skips_rows": True}
    window = profile_window(settings["profiler_config"])
    if window is not None:
        arguments[PROFILE_WINDOW] = window


def speculative_arguments(settings: Settings, chosen: Chosen) -> Arguments:
    """Return the part of `--speculative-config` that belongs to the method itself; derived keys only where the method
    has them.
    """
    values = underscored(settings["speculative_config"] or {})
    values.pop("method", None)
    choice = chosen.stages.get("speculative")
    known: tuple[str, ...] = ()
    if choice is not None and choice.manifests:
        plugin = choice.manifests[0]
        struct = plugin.spec.arguments
        if plugin.implements("core_draft_spec"):
            values = {key: value for key, value in values.items() if not is_draft_key(key)}
        if struct is not None:
            known = struct.__struct_fields__
    for key in (*CONTROL_KEYS, *acceptance.KEYS):
        if key not in known:
            values.pop(key, None)
    for key, value in settings.keys_of("speculative_config").items():
        if key in known and values.get(key) is None:
            values[key] = value
    return values


def _checked_arguments(
    settings: Settings, registry: PluginRegistry, chosen: Chosen, problems: list[str]
) -> dict[str, Arguments]:
    """Return each chosen plugin's own arguments, by `KIND.NAME`."""
    named = {kind.name: _named_arguments(kind, settings, registry, chosen, problems) for kind in KINDS if kind.by_name}
    found: dict[str, Arguments] = {}
    for manifest in chosen.manifests():
        kind = manifest.row.kind
        name = manifest.row.name
        argument = kind_named(kind).config_argument
        values: Arguments = {}
        prefix = "--"
        if kind == "kv_connector":
            for instance, given, flag in _connector_arguments(settings, name, named[kind].get(name, {})):
                _, wrong = convert_struct(manifest.spec.arguments, given, flag)
                problems += wrong
                found[f"{kind}.{instance}"] = underscored(given)
            continue
        if kind in named:
            values = named[kind].get(name, {})
            prefix = flag_of(f"{argument}.{name}")
        elif kind == "speculative":
            values = speculative_arguments(settings, chosen)
            prefix = flag_of(f"{argument}")
        elif argument is not None:
            values = settings[argument]
            prefix = flag_of(argument)
        dump = settings.mapping("compilation_config").get("debug_dump_path")
        if dump and manifest.spec.capabilities.get("dumps_on_request"):
            values = {**values, "debug_dump": dump}
        if settings["batch_invariant"] and manifest.spec.capabilities.get("invariant_on_request"):
            values = {**values, "invariant": True}
        _, wrong = convert_struct(manifest.spec.arguments, values, prefix)
        problems += wrong
        found[f"{kind}.{name}"] = underscored(values)
    if settings["quantization_config"] and chosen.name("quantization") is None:
        problems.append("--quantization-config: the checkpoint needs no quantization method; leave it out.")
    return found


def _connector_arguments(
    settings: Settings, plugin: str, own: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield (name, arguments, what precedes their names in messages) of each connector of a plugin.

    own: its arguments in `--kv-connectors-config`.
    """
    connectors = named_connectors(settings)
    if plugin == "tiers":
        yield plugin, connectors.tiers, connectors.tiers_flag
    for instance, connector in connectors.instances():
        if instance.partition("#")[0] == plugin:
            given = own if connector.arguments is None else connector.arguments
            yield instance, given, connector.flag or flag_of(f"kv_connectors_config.{plugin}")


def _named_arguments(
    kind: Kind, settings: Settings, registry: PluginRegistry, chosen: Chosen, problems: list[str]
) -> dict[str, Arguments]:
    """Return the arguments of the plugins of a kind that are used, by name."""
    argument = kind.config_argument
    assert argument is not None, "the kind has an argument with a mapping for each name"
    noun = NOUNS[kind.name]
    chosen_rows = [manifest.row for manifest in chosen.manifests()]
    used = {row.name for row in chosen_rows if row.kind == kind.name}
    known = {row.name for row in registry.rows(kind.name)}
    if kind.name == "kv_connector":
        used = with_own_config(settings)
        known.add("multi")
    found: dict[str, Arguments] = {}
    for key, values in settings[argument].items():
        name = normalize(key)
        flag = f"{flag_of(argument)}.{key}"
        row = foreign.table().get(f"{argument}.{name}")
        if name not in known and row is not None:
            problems.append(f"{flag}: {row.sentence}.")
        elif name not in known:
            listed = ", ".join(sorted(known))
            problems.append(f"{flag}: no such {noun}; known: {listed}.{nearest(name, known)}")
        elif not isinstance(values, Mapping):
            problems.append(f"{flag} {values!r}: expected {flag}.KEY VALUE.")
        elif name not in used:
            names = ", ".join(sorted(used)) or "none"
            problems.append(f"{flag}: this {noun} is not used (chosen: {names}); leave it out.")
        else:
            found[name] = dict(values)
    return found
