"""Which plugin serves what, stage by stage, with the reason for every candidate that lost.

Owns: the rules of choice. Never does: load a plugin, read files, or know the engine's arguments beyond the choices given.
Called by: config, which feeds the answer of each stage to the next.

One rule everywhere: an explicit choice is taken or is an error, never replaced; otherwise the checkpoint's declaration,
the platform's preference, priority and name decide, in that order. What is merely installed (a plugin of another package
than the engine's, that neither the user named nor the platform brings) is asked only when nothing else can do the work, so
that installing a package changes nothing that works without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from core.api.checkpoint import CheckpointFacts, FileFacts
from core.api.config import ResolvedPlugin
from core.api.errors import CoreError, PluginError, UserError
from core.api.specs import AttentionQuery, StateQuery
from core.plugin.capabilities import attention_reasons, device_reasons, state_reasons
from core.plugin.discovery import origin
from core.plugin.hookspecs import Device, Probe
from core.plugin.kinds import kind_named, normalize
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry, kernel_reasons, twice

NOT_CHOSEN = "installed, not chosen"
PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16", "I64", "BOOL"})
"""Of checkpoints that need no quantization method; the last two are buffers that nobody reads."""


class Candidate(msgspec.Struct, frozen=True):
    """One plugin that was considered.

    verdict: `chosen`, `fits` (but another one came first), `refused`, or `installed, not chosen` (it was not even asked).
    """

    name: str
    distribution: str
    verdict: str
    reasons: tuple[str, ...] = ()


class Selection(msgspec.Struct, frozen=True):
    """One stage. kind: such as `loader` or `attention.sliding`. chosen: names, empty for none. why: a sentence."""

    kind: str
    chosen: tuple[str, ...]
    why: str
    candidates: tuple[Candidate, ...]


class Choice(msgspec.Struct, frozen=True):
    """A stage's answer with the manifests behind it. named: rows of those that were named rather than found."""

    selection: Selection
    manifests: tuple[Any, ...]
    named: tuple[ResolvedPlugin, ...] = ()

    @property
    def manifest(self) -> Manifest:
        """The one manifest that was chosen."""
        (only,) = self.manifests
        assert isinstance(only, Manifest)
        return only


Check = Callable[[Manifest], Sequence[object]]
Belongs = Callable[[ResolvedPlugin], bool]
"""Whether a plugin may serve without being named although others could."""


def select_loader(registry: PluginRegistry, name: str | None, facts: FileFacts) -> Choice:
    """The loader named, else the one that claims the files. Raises UserError or PluginError."""
    if name is not None:
        return _explicit(registry, "loader", "loader", name, lambda manifest: [], f"--load-format {name}")
    claims: dict[str, str] = {}
    choice = _ranked(registry, "loader", "loader", lambda m: _unclaimed(m, facts, claims), lambda found: claims[found])
    if not choice.manifests:
        seen = ", ".join(facts.names[:8]) or "nothing"
        raise UserError(
            f"model '{facts.ref}': no loader knows these files ({seen}). {_losses(choice.selection)}"
            "Expected a .gguf file, or a directory with config.json and weights; --load-format NAME chooses a loader."
        )
    return choice


def select_platform(registry: PluginRegistry, name: str | None) -> tuple[Choice, Device]:
    """The platform (and device, `cuda:1`) named, else the best that finds a device. Raises UserError or PluginError.

    A device is found as files are: a platform of another package serves without being named when its device is one that
    the engine's own platforms do not have. The host is no such device, whatever a package calls it.
    """
    plain, _, index = (name or "").rpartition(":")
    plain = plain if plain and index.isdigit() else name or ""
    named = _find(registry, "platform", plain) if name else None
    answers = registry.probe(None if named is None else [named.row])

    def check(manifest: Manifest) -> Sequence[object]:
        return list(filter(None, [silent.get(manifest.row, "")]))

    silent = {row: str(a) if isinstance(a, PluginError) else a.unavailable for row, a in answers.items()}
    if name is None:
        known = {_type_of(device) for row in answers if registry.own(row) for device in _devices(answers, row)}

        def belongs(row: ResolvedPlugin) -> bool:
            found = _devices(answers, row)
            return registry.own(row) or any(not one.processors and _type_of(one) not in known for one in found)

        choice = _ranked(
            registry,
            "platform",
            "platform",
            check,
            lambda found: "highest priority with a device",
            belongs=belongs,
            known=silent,
        )
        if not choice.manifests:
            raise UserError(f"--device auto: no platform has a device. {_losses(choice.selection)}")
        return choice, _devices(answers, choice.manifest.row)[0]
    choice = _explicit(registry, "platform", "platform", plain, check, f"--device {name}")
    devices = _devices(answers, choice.manifest.row)
    position = 0 if plain == name else int(index)
    if position < len(devices):
        return choice, devices[position]
    raise UserError(f"--device {name}: no such device; found: {', '.join(device.name for device in devices)}.")


def select_quantization(registry: PluginRegistry, name: str | None, facts: CheckpointFacts) -> Choice:
    """The method named, else the one declared, else one that claims the checkpoint, else none."""

    def check(manifest: Manifest) -> Sequence[object]:
        return list(manifest.call("core_supports", query=facts))

    if name is not None:
        if facts.quantization is not None and normalize(facts.quantization) != normalize(name.rpartition(":")[2]):
            declared = _find(registry, "quantization", facts.quantization)
            if declared is None or declared.row.name != registry.get("quantization", name).row.name:
                raise UserError(
                    f"--quantization {name}: the checkpoint declares '{facts.quantization}'; leave the argument out."
                )
        return _explicit(registry, "quantization", "quantization", name, check, f"--quantization {name}")
    if facts.quantization is not None:
        why = f"the checkpoint declares '{facts.quantization}'"
        return _explicit(registry, "quantization", "quantization", facts.quantization, check, why)
    claims: dict[str, str] = {}

    def claimed(manifest: Manifest) -> Sequence[object]:
        return _unclaimed(manifest, facts, claims) or check(manifest)

    return _ranked(
        registry,
        "quantization",
        "quantization",
        claimed,
        lambda found: claims[found],
        none="no method claims the checkpoint",
        strangers=not facts.tensor_dtypes or not PLAIN_DTYPES.issuperset(facts.tensor_dtypes),
    )


def select_kernels(
    registry: PluginRegistry,
    device: str,
    names: Sequence[str] = ("auto",),
    preference: Sequence[str] = (),
    package: str = "",
) -> Choice:
    """The providers named, best first; `auto` among them stands for every one that belongs here and works on the device.

    None is fine: the reference operations serve everything. For the same reason nobody is asked who does not belong here.
    preference: names that the platform prefers, best first. package: the platform's distribution.
    """

    def check(manifest: Manifest) -> Sequence[object]:
        return device_reasons(manifest.spec, device) or kernel_reasons(manifest, _device_type(device))

    order = _order(preference)
    auto = _ranked(
        registry,
        "kernels",
        "kernels",
        check,
        lambda found: "fits the device",
        order=order,
        none="no provider fits; the reference operations are used",
        many=True,
        belongs=_company(registry, "kernels", order, package),
        strangers=False,
    )
    if [name.lower() for name in names] == ["auto"]:
        return auto
    why, taken, named = f"--kernels {','.join(names)}", list[Manifest](), list[ResolvedPlugin]()
    for name in names:
        if name.lower() == "auto":
            taken += auto.manifests
            continue
        only = _explicit(registry, "kernels", "kernels", name, check, why).manifest
        named.append(only.row)
        taken.append(only)
    unique = tuple({manifest.row: manifest for manifest in taken}.values())
    chosen = tuple(Candidate(m.row.name, m.row.distribution, "chosen") for m in unique)
    others = [row for row in registry.rows("kernels") if row not in {manifest.row for manifest in unique}]
    left = tuple(Candidate(row.name, row.distribution, "refused", ("not among those named",)) for row in others)
    selection = Selection("kernels", tuple(candidate.name for candidate in chosen), why, (*chosen, *left))
    return Choice(selection, unique, tuple(named))


def select_attention(
    registry: PluginRegistry,
    name: str | None,
    query: AttentionQuery | StateQuery,
    preference: Sequence[str],
    preferred_by: str,
    package: str = "",
) -> Choice:
    """The backend of one layer kind.

    preference: names that the platform prefers, best first. package: the platform's distribution.
    """
    label = f"attention.{query.spec.kind}"

    def check(manifest: Manifest) -> Sequence[object]:
        declared = state_reasons if isinstance(query, StateQuery) else attention_reasons
        return declared(manifest.spec, query) or manifest.call("core_supports", query=query)  # type: ignore[arg-type]

    if name is not None:
        return _explicit(registry, "attention", label, name, check, f"--attention-backend {name}")
    order = _order(preference)
    choice = _ranked(
        registry,
        "attention",
        label,
        check,
        lambda found: f"preferred by platform {preferred_by}" if found in order else "highest priority that fits",
        order=order,
        belongs=_company(registry, "attention", order, package),
    )
    if not choice.manifests:
        raise UserError(f"{label}: no attention backend can serve this model. {_losses(choice.selection)}")
    return choice


def select_model(registry: PluginRegistry, facts: CheckpointFacts) -> Choice:
    """The family that claims a checkpoint which the engine's own table does not know, or none."""
    claims: dict[str, str] = {}
    return _ranked(registry, "model", "model", lambda m: _unclaimed(m, facts, claims), lambda found: claims[found])


def select_speculative(registry: PluginRegistry, method: str | None, facts: CheckpointFacts) -> Choice:
    """The proposer named by `--speculative-config.method`, or none."""
    if method is None:
        return Choice(Selection("speculative", (), "not asked for", ()), ())

    def check(manifest: Manifest) -> Sequence[object]:
        return list(manifest.call("core_supports", query=facts))

    return _explicit(registry, "speculative", "speculative", method, check, f"--speculative-config.method {method}")


def select_policy(registry: PluginRegistry, name: str) -> Choice:
    """The scheduling policy named by `--scheduling-policy`."""
    return _explicit(registry, "policy", "policy", name, lambda manifest: [], f"--scheduling-policy {name}")


def _explicit(registry: PluginRegistry, kind: str, label: str, name: str, check: Check, why: str) -> Choice:
    """Take exactly the plugin named, or say why not."""
    try:
        manifest = registry.get(kind, name)
    except UserError as error:
        raise UserError(f"{why}: {error}") from None
    except PluginError as error:
        raise PluginError(f"{why}: {error}") from error
    reasons = tuple(str(reason) for reason in check(manifest))
    if reasons:
        raise UserError(f"{why}: {origin(manifest.row)} refuses: {'; '.join(reasons)}.")
    rows = [other for other in registry.rows(kind) if other != manifest.row]
    others = [Candidate(row.name, row.distribution, "refused", ("not the one named",)) for row in rows]
    chosen = Candidate(manifest.row.name, manifest.row.distribution, "chosen")
    return Choice(Selection(label, (manifest.row.name,), why, (chosen, *others)), (manifest,), (manifest.row,))


def _ranked(
    registry: PluginRegistry,
    kind: str,
    label: str,
    check: Check,
    why: Callable[[str], str],
    *,
    order: Mapping[str, int] | None = None,
    none: str = "none fits",
    many: bool = False,
    belongs: Belongs | None = None,
    strangers: bool = True,
    known: Mapping[ResolvedPlugin, str] | None = None,
) -> Choice:
    """The best candidate without reasons against it (all of them with `many`), broken ones listed and passed over.

    Those that belong here are asked first, strangers only when none of them fits (never without `strangers`): nothing of a
    stranger is imported before. known: reasons against plugins that need not be imported to be heard.
    """
    rows, mine = registry.rows(kind), belongs or registry.own
    at_home = [row for row in rows if mine(row)]
    abroad = [row for row in rows if row not in at_home]
    fitting, lost = _asked(registry, kind, at_home, check, known or {})
    if fitting or not strangers:
        lost += [_not_asked(registry, row) for row in abroad]
    else:
        fitting, more = _asked(registry, kind, abroad, check, known or {})
        lost += more
    ranks = order or {}
    fitting.sort(key=lambda m: (ranks.get(m.row.name, len(ranks)), -m.spec.priority, m.row.name))
    chosen = tuple(fitting if many else fitting[:1])
    for manifest in chosen:
        if twice(registry, manifest.row):
            registry.get(kind, manifest.row.name)
    considered = tuple(
        Candidate(
            m.row.name,
            m.row.distribution,
            "chosen" if m in chosen else "fits",
            () if m in chosen else ("another came first",),
        )
        for m in fitting
    )
    names = tuple(m.row.name for m in chosen)
    named = tuple(m.row for m in chosen if registry.named(m.row))
    return Choice(Selection(label, names, why(names[0]) if names else none, (*considered, *lost)), chosen, named)


def _asked(
    registry: PluginRegistry,
    kind: str,
    rows: Sequence[ResolvedPlugin],
    check: Check,
    known: Mapping[ResolvedPlugin, str],
) -> tuple[list[Manifest], list[Candidate]]:
    """Those that fit, and the others with the reasons."""
    fitting: list[Manifest] = []
    lost = [Candidate(row.name, row.distribution, "refused", (known[row],)) for row in rows if known.get(row)]
    for row, manifest in registry.candidates(kind, [row for row in rows if not known.get(row)]):
        reasons = (manifest,) if isinstance(manifest, str) else _guarded(check, manifest)
        if reasons:
            lost.append(Candidate(row.name, row.distribution, "refused", reasons))
        elif not isinstance(manifest, str):
            fitting.append(manifest)
    return fitting, lost


def _not_asked(registry: PluginRegistry, row: ResolvedPlugin) -> Candidate:
    if registry.blocked(row):
        return Candidate(row.name, row.distribution, "refused", (registry.blocked(row),))
    argument = kind_named(row.kind).argument or "plugins"
    hint = f"name it with --{argument.replace('_', '-')} {row.name}"
    return Candidate(row.name, row.distribution, NOT_CHOSEN, (hint,))


def _company(registry: PluginRegistry, kind: str, preferred: Mapping[str, int], package: str) -> Belongs:
    """What belongs to a platform: the engine's own plugins, those of its package, and those whose names it prefers."""
    own = {row.name for row in registry.rows(kind) if registry.own(row)}

    def belongs(row: ResolvedPlugin) -> bool:
        brought = bool(package) and row.distribution == package
        return registry.own(row) or brought or (row.name in preferred and row.name not in own)

    return belongs


def _order(preference: Sequence[str]) -> dict[str, int]:
    """Ranks by name."""
    return {normalize(item): index for index, item in enumerate(preference)}


def _guarded(check: Check, manifest: Manifest) -> tuple[str, ...]:
    """Reasons against a candidate; one that fails to answer is out for that."""
    try:
        return tuple(str(reason) for reason in check(manifest))
    except CoreError as error:
        return (str(error),)


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


def _type_of(device: Device) -> str:
    return _device_type(device.name)


def _device_type(device: str) -> str:
    return device.partition(":")[0]


def _losses(selection: Selection) -> str:
    lines = [f"{c.name}: {'; '.join(c.reasons)}." for c in selection.candidates if c.verdict == "refused"]
    return " ".join(lines) + (" " if lines else "")
