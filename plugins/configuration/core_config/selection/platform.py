"""The choice of the platform that computes, and of one of its devices.

Owns: that stage. Never does: query a device (the registry has platforms probed). Called by: the configuration's stage of the
same name.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.api.config import ResolvedPlugin
from core.api.errors import PluginError, UserError
from core.plugin.hookspecs import Device, Probe
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core_config.selection.ranking import Choice, explicit, losses, ranked
from core_config.selection.reasons import device_type


def select_platform(registry: PluginRegistry, name: str | None) -> tuple[Choice, Device]:
    """Choose the named platform and device (`cuda:1`), else the best one with a device. Raises UserError or PluginError."""
    if name is None:
        return _platform_found(registry)
    plain, _, index = name.rpartition(":")
    if not plain or not index.isdigit():
        plain, index = name, ""
    named = registry.find("platform", plain)
    answers = registry.probe(None if named is None else [named.row])
    silent = _silent(answers)
    choice = explicit(registry, "platform", "platform", plain, lambda m: _reasons(m, silent), f"--device {name}")
    devices = _devices(answers, choice.manifest.row)
    for place, device in enumerate(devices):
        if not index or _number(device, place) == int(index):
            return choice, device
    found = ", ".join(device.name for device in devices)
    described = ", ".join(device.description for device in devices)
    raise UserError(f"--device {name}: no such device; found: {found} ({described}).")


def _number(device: Device, place: int) -> int:
    """Return the number in a device's name, or else its place: a platform may leave out devices that it cannot use."""
    number = device.name.rpartition(":")[2]
    return int(number) if number.isdigit() else place


def _platform_found(registry: PluginRegistry) -> tuple[Choice, Device]:
    """Choose the best platform with a device, and its first device.

    One that has found devices and can use none of them is not passed over in silence: the user decides.

    A platform of another package may serve without being named when it has a device of a type that the engine's own platforms
    do not have. The host (a device with `processors`) does not count as such a device.
    """
    answers = registry.probe()
    silent = _silent(answers)
    known: set[str] = set()
    for row in answers:
        if registry.own(row):
            known |= {device_type(device.name) for device in _devices(answers, row)}

    def belongs(row: ResolvedPlugin) -> bool:
        if registry.own(row):
            return True
        accelerators = [device for device in _devices(answers, row) if not device.processors]
        return any(device_type(device.name) not in known for device in accelerators)

    choice = ranked(
        registry,
        "platform",
        "platform",
        lambda manifest: _reasons(manifest, silent),
        lambda found: "highest priority with a device",
        belongs=belongs,
        known=silent,
    )
    if not choice.manifests:
        raise UserError(f"--device auto: no platform has a device. {losses(choice.selection)}")
    failed = [f"{row.name}: {why}" for row, why in silent.items() if _has_failed(answers[row]) and registry.own(row)]
    if failed:
        name = choice.manifest.row.name
        raise UserError(f"--device auto: {'; '.join(failed)}. Or choose --device {name} to do without.")
    return choice, _devices(answers, choice.manifest.row)[0]


def _has_failed(answer: Probe | PluginError) -> bool:
    """Whether a platform has found devices that cannot be used."""
    return isinstance(answer, Probe) and answer.failed


def _silent(answers: Mapping[ResolvedPlugin, Probe | PluginError]) -> dict[ResolvedPlugin, str]:
    """Return why each platform has no device; an empty string for a platform that has one."""
    reasons: dict[ResolvedPlugin, str] = {}
    for row, answer in answers.items():
        if isinstance(answer, PluginError):
            reasons[row] = str(answer)
        else:
            reasons[row] = answer.unavailable
    return reasons


def _reasons(manifest: Manifest, silent: Mapping[ResolvedPlugin, str]) -> list[str]:
    """Return the reason against a platform, if there is one."""
    reason = silent.get(manifest.row, "")
    return [reason] if reason else []


def _devices(answers: Mapping[ResolvedPlugin, Probe | PluginError], row: ResolvedPlugin) -> tuple[Device, ...]:
    answer = answers.get(row)
    return answer.devices if isinstance(answer, Probe) else ()
