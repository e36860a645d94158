"""Which plugin serves what, stage by stage, with the reason for every candidate that lost.

Owns: the rules of choice. Never does: load a plugin, read files, or know the engine's arguments beyond the choices given.
Called by: config, which feeds the answer of each stage to the next.

One rule everywhere: an explicit choice is taken or is an error, never replaced; otherwise the checkpoint's declaration,
the platform's preference, priority and name decide, in that order. What is merely installed (a plugin of another package
than the engine's, that neither the user named nor the platform brings) is asked only when nothing else can do the work, so
that installing a package changes nothing that works without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from core.api.checkpoint import CheckpointFacts, FileFacts
from core.api.config import ResolvedPlugin
from core.api.errors import CoreError, PluginError, UserError
from core.api.reason import Reason
from core.api.specs import AttentionQuery, KernelQuery, StateQuery
from core.plugin.capabilities import attention_reasons, device_reasons, state_reasons
from core.plugin.hookspecs import Device, Probe
from core.plugin.kinds import normalize
from core.plugin.manifest import Manifest
from core.plugin.quantization_names import own_name, why_refused
from core.plugin.ranking import Candidate, Choice, Selection, company, explicit, losses, order_of, ranked
from core.plugin.registry import PluginRegistry
from core.plugin.rehearsal import Call
from core.plugin.words import called

ONLY_NAMED = Reason("only_named", "to be named", "auto", "--kernels NAME,auto")
"""Against a provider that is used by those alone who ask for it."""
PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16", "I64", "BOOL"})
"""Of checkpoints that need no quantization method; the last two are buffers that nobody reads."""
KERNEL_OPERATIONS = ("rms_norm", "linear", "rms_norm_heads", "rotary", "gated", "add", "scale", "race")
KERNEL_QUERIES = tuple(KernelQuery(op=op, device="cpu") for op in KERNEL_OPERATIONS)
KERNEL_CALLS = tuple(Call.of("core_supports", query=query) for query in KERNEL_QUERIES)
"""The operations that a provider is asked about; one that serves none of these is no candidate."""


def select_loader(registry: PluginRegistry, name: str | None, facts: FileFacts) -> Choice:
    """The loader named, else the one that claims the files. Raises UserError or PluginError."""
    if name is not None:
        return explicit(registry, "loader", "loader", name, lambda manifest: [], f"--load-format {name}")
    claims: dict[str, str] = {}
    choice = ranked(
        registry,
        "loader",
        "loader",
        lambda manifest: _unclaimed(manifest, facts, claims),
        lambda found: claims[found],
        calls=[Call.of("core_claim", facts=facts)],
    )
    if not choice.manifests:
        seen = ", ".join(facts.names[:8]) or "nothing"
        raise UserError(
            f"model '{facts.ref}': no loader knows these files ({seen}). {losses(choice.selection)}"
            "Expected a .gguf file, or a directory with config.json and weights; --load-format NAME chooses a loader."
        )
    return choice


def select_platform(registry: PluginRegistry, name: str | None) -> tuple[Choice, Device]:
    """The platform (and device, `cuda:1`) named, else the best that finds a device. Raises UserError or PluginError."""
    if name is None:
        return _platform_found(registry)
    plain, _, index = name.rpartition(":")
    if not plain or not index.isdigit():
        plain, index = name, "0"
    named = _find(registry, "platform", plain)
    answers = registry.probe(None if named is None else [named.row])
    silent = _silent(answers)
    choice = explicit(registry, "platform", "platform", plain, lambda m: _told(m, silent), f"--device {name}")
    devices = _devices(answers, choice.manifest.row)
    if int(index) < len(devices):
        return choice, devices[int(index)]
    found = ", ".join(device.name for device in devices)
    raise UserError(f"--device {name}: no such device; found: {found}.")


def _platform_found(registry: PluginRegistry) -> tuple[Choice, Device]:
    """The best platform with a device, and its first one.

    A device is found as files are: a platform of another package serves without being named when its device is one that
    the engine's own platforms do not have. The host (a device with `processors`) is no such device.
    """
    answers = registry.probe()
    silent = _silent(answers)
    known: set[str] = set()
    for row in answers:
        if registry.own(row):
            known |= {_device_type(device.name) for device in _devices(answers, row)}

    def belongs(row: ResolvedPlugin) -> bool:
        if registry.own(row):
            return True
        accelerators = [device for device in _devices(answers, row) if not device.processors]
        return any(_device_type(device.name) not in known for device in accelerators)

    choice = ranked(
        registry,
        "platform",
        "platform",
        lambda manifest: _told(manifest, silent),
        lambda found: "highest priority with a device",
        belongs=belongs,
        known=silent,
    )
    if not choice.manifests:
        raise UserError(f"--device auto: no platform has a device. {losses(choice.selection)}")
    return choice, _devices(answers, choice.manifest.row)[0]


def _silent(answers: Mapping[ResolvedPlugin, Probe | PluginError]) -> dict[ResolvedPlugin, str]:
    """Why each platform has no device; an empty string for one that has."""
    reasons: dict[ResolvedPlugin, str] = {}
    for row, answer in answers.items():
        if isinstance(answer, PluginError):
            reasons[row] = str(answer)
        else:
            reasons[row] = answer.unavailable
    return reasons


def _told(manifest: Manifest, silent: Mapping[ResolvedPlugin, str]) -> list[str]:
    """The reason against a platform, if there is one."""
    reason = silent.get(manifest.row, "")
    return [reason] if reason else []


def select_quantization(registry: PluginRegistry, name: str | None, facts: CheckpointFacts) -> Choice:
    """The method named, else the one declared, else one that claims the checkpoint, else none."""

    def check(manifest: Manifest) -> Sequence[object]:
        return list(manifest.call("core_supports", query=facts))

    declared = None
    if facts.quantization is not None:
        declared = _method(registry, facts.quantization, "the checkpoint declares")
    if name is not None:
        asked = _method(registry, name, "--quantization")
        if declared is not None and not _same_method(registry, asked.own, declared.own):
            raise UserError(f"--quantization {name}: {declared.said}; leave the argument out.")
        return explicit(registry, "quantization", "quantization", asked.own, check, asked.said)
    if declared is not None:
        return explicit(registry, "quantization", "quantization", declared.own, check, declared.said)
    claims: dict[str, str] = {}

    def claimed(manifest: Manifest) -> Sequence[object]:
        return _unclaimed(manifest, facts, claims) or check(manifest)

    is_plain = bool(facts.tensor_dtypes) and PLAIN_DTYPES.issuperset(facts.tensor_dtypes)
    return ranked(
        registry,
        "quantization",
        "quantization",
        claimed,
        lambda found: claims[found],
        none="no method claims the checkpoint",
        calls=[Call.of("core_claim", facts=facts), Call.of("core_supports", query=facts)],
        strangers=not is_plain,
    )


def _method(registry: PluginRegistry, name: str, told_by: str) -> _Method:
    """A method's own name for one that somebody uses. Raises UserError for one that cannot be served."""
    said = f"{told_by} '{name}'" if " " in told_by else f"{told_by} {name}"
    if _find(registry, "quantization", name) is not None:
        return _Method(name, said)
    why = why_refused(name)
    if why is not None:
        raise UserError(f"{said}: {why}.")
    own = own_name(name)
    return _Method(own, said if own == name else f"{said}, another name of {own}")


class _Method(NamedTuple):
    """A quantization method that was named.

    own: its plugin's name.
    said: who named it, and how.
    """

    own: str
    said: str


def _same_method(registry: PluginRegistry, name: str, declared: str) -> bool:
    """Whether the method that the user named is the one that the checkpoint declares, or an alias of it."""
    _, _, plain = name.rpartition(":")
    if normalize(plain) == normalize(declared):
        return True
    method = _find(registry, "quantization", declared)
    return method is not None and method.row.name == registry.get("quantization", name).row.name


def select_kernels(
    registry: PluginRegistry,
    device: str,
    names: Sequence[str] = ("auto",),
    preference: Sequence[str] = (),
    package: str = "",
) -> Choice:
    """The providers named, best first; `auto` among them stands for every one that belongs here and works on the device.

    None is fine: the reference operations serve everything. For the same reason only plugins that belong here are asked.

    preference: names that the platform prefers, best first.
    package:    the platform's distribution.
    """

    def check(manifest: Manifest) -> Sequence[object]:
        return device_reasons(manifest.spec, device) or kernel_reasons(manifest, _device_type(device))

    def belongs_to_auto(manifest: Manifest) -> Sequence[object]:
        if manifest.spec.capabilities.get("only_named", False):
            return [ONLY_NAMED]
        return check(manifest)

    order = order_of(preference)
    auto = ranked(
        registry,
        "kernels",
        "kernels",
        belongs_to_auto,
        lambda found: "fits the device",
        order=order,
        none="no provider fits; the reference operations are used",
        many=True,
        calls=KERNEL_CALLS,
        belongs=company(registry, "kernels", order, package),
        strangers=False,
    )
    if [name.lower() for name in names] == ["auto"]:
        return auto
    why = f"--kernels {','.join(names)}"
    taken: dict[ResolvedPlugin, Manifest] = {}
    named: list[ResolvedPlugin] = []
    for name in names:
        if name.lower() == "auto":
            for manifest in auto.manifests:
                taken.setdefault(manifest.row, manifest)
            continue
        choice = explicit(registry, "kernels", "kernels", name, check, why)
        row = choice.manifest.row
        named.append(row)
        taken.setdefault(row, choice.manifest)
    candidates = [Candidate(row.name, row.distribution, "chosen") for row in taken]
    for row in registry.rows("kernels"):
        if row not in taken:
            candidates.append(Candidate(row.name, row.distribution, "refused", ("not among those named",)))
    chosen = tuple(row.name for row in taken)
    selection = Selection("kernels", chosen, why, tuple(candidates))
    return Choice(selection, tuple(taken.values()), tuple(named))


def kernel_reasons(manifest: Manifest, device: str) -> list[Reason]:
    """Why a provider serves no operation at all on a device type; empty when it serves one. Raises CoreError."""
    refused: list[Reason] = []
    for op in KERNEL_OPERATIONS:
        query = KernelQuery(op=op, device=device)
        reasons = list(manifest.call("core_supports", query=query))
        if not reasons:
            return []
        refused = refused or reasons
    return refused


def select_attention(
    registry: PluginRegistry,
    name: str | None,
    query: AttentionQuery | StateQuery,
    preference: Sequence[str],
    preferred_by: str,
    package: str = "",
) -> Choice:
    """The backend of one layer kind.

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
        belongs=company(registry, "attention", order, package),
        calls=[Call.of("core_supports", query=query)],
    )
    if not choice.manifests:
        raise UserError(f"{label}: no attention backend can serve this model. {losses(choice.selection)}")
    return choice


def select_model(registry: PluginRegistry, facts: CheckpointFacts) -> Choice:
    """The family that claims a checkpoint which the engine's own table does not know, or none."""
    claims: dict[str, str] = {}
    return ranked(
        registry,
        "model",
        "model",
        lambda manifest: _unclaimed(manifest, facts, claims),
        lambda found: claims[found],
        calls=[Call.of("core_claim", facts=facts)],
    )


def select_speculative(registry: PluginRegistry, method: str | None, facts: CheckpointFacts) -> Choice:
    """The proposer named by `--speculative-config.method`, or none."""
    if method is None:
        return Choice(Selection("speculative", (), "not asked for", ()), ())

    def check(manifest: Manifest) -> Sequence[object]:
        return list(manifest.call("core_supports", query=facts))

    return explicit(registry, "speculative", "speculative", method, check, f"--speculative-config.method {method}")


def select_policy(registry: PluginRegistry, name: str) -> Choice:
    """The scheduling policy named by `--scheduling-policy`."""
    return explicit(registry, "policy", "policy", name, lambda manifest: [], f"--scheduling-policy {name}")


def select_grammars(registry: PluginRegistry, name: str | None, *, alone: bool = False) -> Choice:
    """The grammar backends that requests may have, in the order in which `auto` asks them.

    name: of the first one; None: as their priorities say.
    alone: the named one only.
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


def select_logits_processors(registry: PluginRegistry, names: Sequence[str]) -> Choice:
    """The processors named, in order; `manifests` has the plugins among them.

    A word with a dot or a colon that names no plugin is the import path of a class, which the worker imports.
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


def _unclaimed(manifest: Manifest, facts: CheckpointFacts | FileFacts, claims: dict[str, str]) -> list[str]:
    claim = manifest.call("core_claim", facts=facts)
    if claim is None:
        return ["does not claim the checkpoint"]
    claims[manifest.row.name] = claim
    return []


def _find(registry: PluginRegistry, kind: str, name: str) -> Manifest | None:
    try:
        return registry.get(kind, name)
    except CoreError:
        return None


def _devices(answers: Mapping[ResolvedPlugin, Probe | PluginError], row: ResolvedPlugin) -> tuple[Device, ...]:
    answer = answers.get(row)
    return answer.devices if isinstance(answer, Probe) else ()


def _device_type(device: str) -> str:
    return device.partition(":")[0]
