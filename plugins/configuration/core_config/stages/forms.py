"""Formats in which a model's matrices are held, as queries to providers of kernels.

Owns: these queries, from the plan of the quantization method. Never does: ask a provider, or read a weight. Called by: the
table of operations, waivers.

A query has no shape, which decides when a weight is prepared. Its attributes name the run's dtype and the device's profile.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from core.api.specs import Activation, KernelQuery, LayerSpec, PartPlan
from core.plugin.hookspecs import Device
from core.plugin.manifest import Manifest
from core_config.selection.reasons import device_reasons, device_type
from core_config.stages.memory import Plan
from core_runtime.specs.module_spec import ModelSpec

EXPERTS: Final = "grouped_experts"


class Form(NamedTuple):
    """Matrices of one format. name: what a table calls them."""

    name: str
    query: KernelQuery


def forms_of(spec: ModelSpec, plan: Plan | None, dtype: str, device: Device) -> list[Form]:
    """Return the forms of a model's matrices, each once, products before experts.

    plan: plan of the quantization method, None without one. dtype: of plain matrices.
    """
    found: dict[tuple[str, str, str], Form] = {}
    facts = {"dtype": dtype, "profile": device.profile}

    def note(part: LayerSpec, form: str, activation: Activation) -> None:
        op, word = (EXPERTS, "experts") if part.role == "experts" else ("linear", "products")
        if (op, form, activation) not in found:
            query = KernelQuery(op, device_type(device.name), form, activation, attributes=facts)
            found[op, form, activation] = Form(f"{form} {word}", query)

    for parts in spec.fused_groups():
        for part in parts:
            answer = None if plan is None else plan(part)
            if isinstance(answer, PartPlan):
                note(part, answer.format, answer.activation)
            else:
                note(part, dtype, "none")
    for half in spec.halves():
        note(half, dtype, "none")
    return sorted(found.values(), key=lambda form: form.query.op == EXPERTS)


def serves(manifest: Manifest, query: KernelQuery) -> bool:
    """Whether a provider serves an operation: by what it declares, and by its answer."""
    formats = manifest.spec.capabilities.get("formats")
    if query.format and formats is not None and query.format not in formats:
        return False
    return not device_reasons(manifest.spec, query.device) and not manifest.call("core_supports", query=query)
