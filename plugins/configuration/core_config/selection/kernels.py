"""The choice of the kernel providers for a device.

Owns: that stage. Never does: load a provider. Called by: the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from core.api.config import ResolvedPlugin
from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin.kernel_support import KERNEL_CALLS, kernel_reasons
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core_config.selection.ranking import (
    Candidate,
    Check,
    Choice,
    Selection,
    belongs_to_platform,
    explicit,
    no_reasons,
    order_of,
    ranked,
)
from core_config.selection.reasons import device_reasons, device_type

DENSE: Final = frozenset({"float32", "float16", "bfloat16"})
"""Formats of weights that are not packed."""
ONLY_NAMED: Final = Reason("only_named", "to be named", "auto", "--kernels NAME,auto")
"""Against a provider that is used by those alone who ask for it."""


def select_kernels(
    registry: PluginRegistry,
    device: str,
    names: Sequence[str] = ("auto",),
    preference: Sequence[str] = (),
    package: str = "",
    wanted: Check = no_reasons,
) -> Choice:
    """Choose the named providers, best first; `auto` stands for every provider that belongs here and works on the device.

    No provider at all is fine, since the reference operations serve everything. For the same reason, only plugins that belong
    to the engine or the platform are considered for `auto`.

    preference: names that the platform prefers, best first.
    package:    the platform's distribution.
    wanted:     returns reasons against a provider that `auto` would choose.
    """

    def check(manifest: Manifest) -> Sequence[object]:
        return device_reasons(manifest.spec, device) or kernel_reasons(manifest, device_type(device))

    def belongs_to_auto(manifest: Manifest) -> Sequence[object]:
        if manifest.spec.capabilities.get("only_named", False):
            return [ONLY_NAMED]
        return wanted(manifest) or check(manifest)

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
        belongs=belongs_to_platform(registry, "kernels", order, package),
        strangers=False,
    )
    if [name.lower() for name in names] == ["auto"]:
        return auto
    return _in_order(registry, names, auto, check)


def _in_order(
    registry: PluginRegistry,
    names: Sequence[str],
    auto: Choice,
    check: Callable[[Manifest], Sequence[object]],
) -> Choice:
    """Choose the named providers, in the order of their names. auto: the choice that the word `auto` stands for."""
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


def is_idle(manifest: Manifest, providers: Sequence[Manifest], device: str) -> bool:
    """Whether better providers already serve all the operations to which this one declares to be limited.

    providers: all chosen providers, best first. device: the device type.
    """
    operations = manifest.spec.capabilities.get("operations")
    if not operations:
        return False
    before = [other for other in providers[: list(providers).index(manifest)] if _covers(other, manifest)]
    queries = [KernelQuery(op=op, device=device) for op in operations]
    return all(any(not other.call("core_supports", query=query) for other in before) for query in queries)


def _covers(other: Manifest, manifest: Manifest) -> bool:
    """Whether a provider declares all formats of another one."""
    theirs = other.spec.capabilities.get("formats")
    return theirs is None or set(theirs).issuperset(manifest.spec.capabilities.get("formats", ()))
