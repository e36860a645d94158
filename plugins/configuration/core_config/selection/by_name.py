"""The choice of plugins by name: proposer, executor, policy, grammar backends, processors of logits and media, KV connectors.

Owns: those stages. Never does: load one. Called by: the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.checkpoint_facts import CheckpointFacts
from core.api.config import ResolvedPlugin
from core.api.errors import UserError, nearest
from core.api.reason import Reason
from core.plugin.kinds import normalize
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core.plugin.rehearsal import Call
from core.plugin.words import called
from core_config.arguments.foreign import refused_value
from core_config.selection.ranking import Candidate, Choice, Selection, explicit, losses, order_of, ranked
from core_config.selection.reasons import device_reasons
from core_media.config import IMAGE
from core_tokens.files import FILE_MODES


def select_speculative(registry: PluginRegistry, method: str | None, facts: CheckpointFacts) -> Choice:
    """Choose the proposer named by `--speculative-config.method`, or none."""
    if method is None:
        return Choice(Selection("speculative", (), "not asked for", ()), ())

    def check(manifest: Manifest) -> Sequence[object]:
        return list(manifest.call("core_supports", query=facts))

    return explicit(registry, "speculative", "speculative", method, check, f"--speculative-config.method {method}")


def select_executor(registry: PluginRegistry, name: str | None, device: str, facts: CheckpointFacts) -> Choice:
    """Choose the executor named by `--executor`, else the best one that serves this checkpoint on this device."""

    def check(manifest: Manifest) -> Sequence[object]:
        return device_reasons(manifest.spec, device) or manifest.call("core_supports", query=facts)

    if name is not None:
        return explicit(registry, "executor", "executor", name, check, f"--executor {name}")
    choice = ranked(
        registry,
        "executor",
        "executor",
        check,
        lambda found: "highest priority that fits",
        calls=[Call.of("core_supports", query=facts)],
    )
    if not choice.manifests:
        raise UserError(f"--executor auto: no executor can serve this model. {losses(choice.selection)}")
    return choice


def select_policy(registry: PluginRegistry, name: str) -> Choice:
    """Choose the scheduling policy named by `--scheduling-policy`."""
    return explicit(registry, "policy", "policy", name, lambda manifest: [], f"--scheduling-policy {name}")


def select_grammars(registry: PluginRegistry, name: str | None, *, alone: bool = False) -> Choice:
    """Choose the grammar backends that requests may use, in the order in which `auto` tries them.

    name: name of the first backend; None: by their priorities.
    alone: whether only the named backend is chosen.
    """
    named = None
    if name is not None:
        said = f"--structured-outputs-config.backend {name}"
        named = explicit(registry, "grammar", "grammar", name, lambda manifest: [], said)
        if alone:
            return named
    first = order_of([name] if name is not None else [])
    others = ranked(
        registry,
        "grammar",
        "grammar",
        lambda manifest: [],
        lambda found: "asked in this order for each grammar",
        order=first,
        many=True,
        strangers=False,
    )
    if named is None or named.manifest in others.manifests:
        return others
    taken = (*named.selection.chosen, *others.selection.chosen)
    candidates = []
    for candidate in others.selection.candidates:
        if candidate.name != named.manifest.row.name:
            candidates.append(candidate)
    selection = Selection("grammar", taken, others.selection.why, (named.selection.candidates[0], *candidates))
    return Choice(selection, (*named.manifests, *others.manifests), named.named)


def select_adapters(registry: PluginRegistry) -> Choice:
    """Choose the formats in which adapters may be read: all that are installed."""
    return ranked(
        registry,
        "adapter",
        "adapter",
        lambda manifest: [],
        lambda found: "asked for each adapter",
        many=True,
        strangers=False,
    )


def select_processor(registry: PluginRegistry, named: str | None, own: str, modalities: Sequence[str]) -> Choice:
    """Choose the processor of media named by `--mm-processor`, else the engine's `own` for the model.

    modalities: those of the model's served media, which it must take.
    """

    def check(manifest: Manifest) -> Sequence[object]:
        taken = manifest.spec.capabilities.get("modalities", [IMAGE])
        return [
            Reason("modalities", " and ".join(taken), name, f"--limit-mm-per-prompt {name}=0 refuses these")
            for name in modalities
            if name not in taken
        ]

    said = "the engine's own for the model" if named is None else f"--mm-processor {named}"
    return explicit(registry, "processor", "processor", named or own, check, said)


def select_io_processor(registry: PluginRegistry, name: str) -> Choice:
    """Choose the IO processor named by `--io-processor-plugin`."""
    said = f"--io-processor-plugin {name}"
    return explicit(registry, "io_processor", "io_processor", name, lambda manifest: [], said)


def select_tokenizer(registry: PluginRegistry, mode: str) -> Choice:
    """Choose the tokenizer plugin that `--tokenizer-mode` names. Raises UserError, which names our own modes, too."""
    said = f"--tokenizer-mode {mode}"
    if not called(registry.rows("tokenizer"), mode) and normalize(mode) not in FILE_MODES:
        known = [*FILE_MODES, *(row.name for row in registry.rows("tokenizer"))]
        why = refused_value("tokenizer_mode", mode)
        raise UserError(f"{said}: {why}expected one of {', '.join(known)}, or a plugin's name.{nearest(mode, known)}")
    return explicit(registry, "tokenizer", "tokenizer", mode, lambda manifest: [], said)


def select_logits_processors(registry: PluginRegistry, names: Sequence[str]) -> Choice:
    """Choose the named logits processors, in order; `manifests` holds those of the plugins among them.

    A name with a dot or a colon that is not a plugin's is the import path of a class, which the worker imports.
    """
    said = f"--logits-processors {','.join(names)}"
    rows = registry.rows("logits_processor")
    taken: dict[ResolvedPlugin, Manifest] = {}
    in_order: list[str] = []
    for name in names:
        is_path = "." in name or ":" in name
        if is_path and not called(rows, name):
            in_order.append(name)
            continue
        choice = explicit(registry, "logits_processor", "logits_processor", name, lambda manifest: [], said)
        taken[choice.manifest.row] = choice.manifest
        in_order.append(choice.manifest.row.name)
    candidates = tuple(Candidate(row.name, row.distribution, "chosen") for row in taken)
    selection = Selection("logits_processor", tuple(in_order), said, candidates)
    return Choice(selection, tuple(taken.values()), tuple(taken))


def select_kv_connectors(registry: PluginRegistry, asked: Sequence[tuple[str, str]]) -> Choice:
    """Choose the KV connectors that arguments request, in the order in which they are searched for pages.

    asked: (name, the argument that requests it, as the user writes it); a further one of the same plugin is called `NAME#2`.
    """
    found: dict[str, Manifest] = {}
    for name, said in asked:
        plugin = name.partition("#")[0]
        choice = explicit(registry, "kv_connector", "kv_connector", plugin, lambda manifest: [], said)
        found.setdefault(plugin, choice.manifest)
    manifests = tuple(found.values())
    taken = tuple(found[name.partition("#")[0]].row.name + name[len(name.partition("#")[0]) :] for name, _ in asked)
    candidates = tuple(Candidate(row.name, row.distribution, "chosen") for row in (one.row for one in manifests))
    why = ", ".join(said for _, said in asked)
    return Choice(Selection("kv_connector", taken, why, candidates), manifests, tuple(one.row for one in manifests))
