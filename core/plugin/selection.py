"""Which plugin serves what, stage by stage, with the reason for every candidate that lost.

Owns: the rules of choice. Never does: load a plugin, read files, or know the engine's arguments beyond the choices given.
Called by: config, which feeds the answer of each stage to the next.

One rule everywhere: an explicit choice is taken or is an error, never replaced; otherwise the checkpoint's declaration,
the platform's preference, priority and name decide, in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from core.api.checkpoint import CheckpointFacts, FileFacts
from core.api.errors import CoreError, PluginError, UserError
from core.api.specs import AttentionQuery, StateQuery
from core.plugin.capabilities import attention_reasons, device_reasons, state_reasons
from core.plugin.discovery import origin
from core.plugin.hookspecs import Device, Probe
from core.plugin.kinds import normalize
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry, kernel_reasons, twice


class Candidate(msgspec.Struct, frozen=True):
    """One plugin that was considered. verdict: `chosen`, `fits` (but another one came first) or `refused`."""

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
    """A stage's answer with the manifests behind it."""

    selection: Selection
    manifests: tuple[Any, ...]

    @property
    def manifest(self) -> Manifest:
        """The one manifest that was chosen."""
        (only,) = self.manifests
        assert isinstance(only, Manifest)
        return only


Check = Callable[[Manifest], Sequence[object]]


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
    """The platform (and device, `cuda:1`) named, else the best that finds a device. Raises UserError or PluginError."""
    plain, _, index = (name or "").rpartition(":")
    plain = plain if plain and index.isdigit() else name or ""
    named = _find(registry, "platform", plain) if name else None
    answers = registry.probe(None if named is None else [named.row])

    def check(manifest: Manifest) -> Sequence[object]:
        answer = answers[manifest.row]
        if isinstance(answer, PluginError):
            return [str(answer)]
        return [answer.unavailable] if answer.unavailable else []

    if name is None:
        choice = _ranked(registry, "platform", "platform", check, lambda found: "highest priority with a device")
        if not choice.manifests:
            raise UserError(f"--device auto: no platform has a device. {_losses(choice.selection)}")
        return choice, _devices(answers, choice.manifest)[0]
    choice = _explicit(registry, "platform", "platform", plain, check, f"--device {name}")
    devices = _devices(answers, choice.manifest)
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
    )


def select_kernels(registry: PluginRegistry, device: str) -> Choice:
    """Every kernel provider that works on the device, best first; none is fine, the reference operations remain."""

    def check(manifest: Manifest) -> Sequence[object]:
        return device_reasons(manifest.spec, device) or kernel_reasons(manifest, _device_type(device))

    none = "no provider fits; the reference operations are used"
    return _ranked(registry, "kernels", "kernels", check, lambda found: "fits the device", none=none, many=True)


def select_attention(
    registry: PluginRegistry,
    name: str | None,
    query: AttentionQuery | StateQuery,
    preference: Sequence[str],
    preferred_by: str,
) -> Choice:
    """The backend of one layer kind. preference: names that the platform prefers, best first."""
    label = f"attention.{query.spec.kind}"

    def check(manifest: Manifest) -> Sequence[object]:
        declared = state_reasons if isinstance(query, StateQuery) else attention_reasons
        return declared(manifest.spec, query) or manifest.call("core_supports", query=query)  # type: ignore[arg-type]

    if name is not None:
        return _explicit(registry, "attention", label, name, check, f"--attention-backend {name}")
    order = {normalize(item): index for index, item in enumerate(preference)}
    choice = _ranked(
        registry,
        "attention",
        label,
        check,
        lambda found: f"preferred by platform {preferred_by}" if found in order else "highest priority that fits",
        order=order,
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
    return Choice(Selection(label, (manifest.row.name,), why, (chosen, *others)), (manifest,))


def _ranked(
    registry: PluginRegistry,
    kind: str,
    label: str,
    check: Check,
    why: Callable[[str], str],
    *,
    order: dict[str, int] | None = None,
    none: str = "none fits",
    many: bool = False,
) -> Choice:
    """The best candidate without reasons against it (all of them with `many`), broken ones listed and passed over."""
    fitting: list[Manifest] = []
    lost: list[Candidate] = []
    for row, manifest in registry.candidates(kind):
        if isinstance(manifest, str):
            reasons: tuple[str, ...] = (manifest,)
        else:
            reasons = _guarded(check, manifest)
            if not reasons:
                fitting.append(manifest)
                continue
        lost.append(Candidate(row.name, row.distribution, "refused", reasons))
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
    return Choice(Selection(label, names, why(names[0]) if names else none, (*considered, *lost)), chosen)


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


def _devices(answers: dict[Any, Probe | PluginError], manifest: Manifest) -> tuple[Device, ...]:
    answer = answers[manifest.row]
    return answer.devices if isinstance(answer, Probe) else ()


def _device_type(device: str) -> str:
    return device.partition(":")[0]


def _losses(selection: Selection) -> str:
    lines = [f"{c.name}: {'; '.join(c.reasons)}." for c in selection.candidates if c.verdict == "refused"]
    return " ".join(lines) + (" " if lines else "")
