"""Who computes each operation, whether its bits hold in every batch, and who else could compute it.

Owns: that table, for `core config explain`. Never does: choose, or load a plugin. Called by: resolve.

The operations are those of every model, and the products of its matrices in each format in which some are held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from core.api.specs import KernelQuery
from core.plugin.hookspecs import Device
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core_config.selection.attention import backend_reasons
from core_config.selection.reasons import device_type, promises
from core_config.stages.attention import query_of
from core_config.stages.chosen import Chosen
from core_config.stages.forms import Form, serves
from core_config.stages.numerics import given_order, own_arguments
from core_config.stages.settings import Settings
from core_config.stages.waivers import given_up
from core_runtime.specs.module_spec import ModelSpec
from core_runtime.specs.operation_order import TORCH as TORCH_NAMES

TORCH: Final = "plain torch"
HOST: Final = "numpy on the host"
SMALL: Final = ("rms_norm", "rms_norm_heads", "rotary", "gated", "add", "take_rows")
SAMPLING: Final = "race"


class Computed(msgspec.Struct, frozen=True):
    """One row of the table.

    operations: their names.
    by:         the plugin.
    same_bits:  whether a request's bits are the same in every batch: `yes`, or `no` with the condition.
    others:     plugins that could compute it instead, each with the same answer.
    """

    operations: tuple[str, ...]
    by: str
    same_bits: str
    others: tuple[str, ...] = ()


def computed(
    settings: Settings,
    registry: PluginRegistry,
    chosen: Chosen,
    spec: ModelSpec,
    device: Device,
    forms: Sequence[Form],
) -> list[Computed]:
    """Return a row for each group of operations with the same answers. forms: of the matrices.

    Raises CoreError for a plugin that fails.
    """
    choice = chosen.stages.get("kernels")
    providers: Sequence[Manifest] = () if choice is None else choice.manifests
    known = _own(registry, "kernels")
    small = [Form(op, KernelQuery(op, device_type(device.name))) for op in (*SMALL, SAMPLING)]
    found: list[Computed] = []
    for name, query in (*forms, *small):
        row = _kernels_row(name, query, providers, known, settings)
        last = found[-1] if found else None
        if last is not None and (last.by, last.same_bits, last.others) == (row.by, row.same_bits, row.others):
            found[-1] = msgspec.structs.replace(last, operations=(*last.operations, name))
        else:
            found.append(row)
    return [*found, *_attention_rows(settings, registry, chosen, spec, device)]


def _kernels_row(
    name: str, query: KernelQuery, providers: Sequence[Manifest], known: dict[str, Manifest], settings: Settings
) -> Computed:
    able = [manifest for manifest in providers if serves(manifest, query)]
    serving = _in_given_order(able, given_order(settings).get(name, ()))
    more = [manifest for manifest in known.values() if manifest not in providers and serves(manifest, query)]
    others = tuple(f"{other.row.name} ({_same_bits(other, settings)})" for other in (*serving[1:], *more))
    if serving:
        return Computed((name,), serving[0].row.name, _same_bits(serving[0], settings), others)
    if name == SAMPLING:
        return Computed((name,), HOST, "yes", others)
    return Computed((name,), TORCH, "yes" if settings["numerics"] == "reference" else "no", others)


def _in_given_order(serving: Sequence[Manifest], names: Sequence[str]) -> list[Manifest]:
    """Return the providers of an operation with the first one that the user names in front; none where that is torch."""
    by_name = {manifest.row.name: manifest for manifest in serving}
    for name in names:
        if name in TORCH_NAMES:
            return []
        if name in by_name:
            return [by_name[name], *(one for one in serving if one is not by_name[name])]
    return list(serving)


def _attention_rows(
    settings: Settings, registry: PluginRegistry, chosen: Chosen, spec: ModelSpec, device: Device
) -> Iterator[Computed]:
    known = _own(registry, "attention")
    mixers = {mixer.kind: mixer for mixer in spec.mixers}
    for kind, mixer in mixers.items():
        stage = f"attention.{kind}"
        choice = chosen.stages.get(stage)
        if choice is None:
            continue
        query = query_of(settings, mixer, device)
        others = []
        for name, manifest in known.items():
            if manifest not in choice.manifests and not backend_reasons(manifest, query):
                others.append(f"{name} ({_same_bits(manifest, settings, kind)})")
        own = choice.manifest
        yield Computed((stage,), own.row.name, _same_bits(own, settings, kind), tuple(others))


def _same_bits(manifest: Manifest, settings: Settings, layers: str = "") -> str:
    for argument in given_up(manifest, layers, own_arguments(settings)):
        return f"no, with {argument}"
    if promises(manifest.spec, settings["numerics"], layers, requested=settings["batch_invariant"]):
        return "yes"
    if layers in manifest.spec.capabilities.get("invariant_on_request", ()):
        return "no, yes with --batch-invariant"
    varies = manifest.spec.capabilities.get("varies")
    return f"no, {varies}" if varies else "no"


def _own(registry: PluginRegistry, kind: str) -> dict[str, Manifest]:
    """Return the engine's own plugins of a kind, and those that are named; nothing else is imported for a table."""
    rows = [row for row in registry.rows(kind) if registry.own(row)]
    return {row.name: found for row, found in registry.candidates(kind, rows) if isinstance(found, Manifest)}
