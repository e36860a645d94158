"""Waivers: chosen plugins that do not guarantee the same tokens for the same request.

Owns: the sentences. Never does: choose, or judge whether a plugin does what it declares (`core plugins check` does).
Called by: resolve.

The guarantee holds when each plugin that computes declares `batch_invariant` (or, among `invariant_kinds`, the layer
kind that it serves), or declares `reference_numerics` and runs with --numerics reference. Drafts waive nothing: they
are verified by the target model with the request's own noise, unless the user chooses another rule of acceptance
(`core_config.speculation.acceptance`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from core.plugin.manifest import Manifest
from core_config.selection.kernels import is_idle
from core_config.stages.chosen import Chosen
from core_config.stages.settings import underscored

WAY_OUT = "--numerics reference makes it independent, slowly"


def waivers(chosen: Chosen, numerics: str, device: str, given: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each part whose results may depend on neighbours, chunks or caches; empty when there is
    none.

    device: its type. Kernels that never compute because of earlier providers waive nothing.
    given: own arguments of plugins by kind, and by name.
    """
    computing = [
        (manifest, stage.partition(".")[2])
        for stage, choice in chosen.stages.items()
        for manifest in choice.manifests
        if manifest.row.kind in ("attention", "kernels") and not is_idle(manifest, choice.manifests, device)
    ]
    broken = [manifest for manifest, layers in computing if not promises(manifest, numerics, layers)]
    found = list(dict.fromkeys(map(_sentence, broken)))
    for manifest, layers in computing:
        own = given[manifest.row.kind].get(manifest.row.name) or {}
        found += _given_up(manifest, layers, underscored(own))
    kernels = chosen.stages.get("kernels")
    if numerics == "fast" and (kernels is None or not kernels.manifests):
        found.append(
            f"kernels: no plugin fits, and operations in plain torch depend on the batch they run in; {WAY_OUT}"
        )
    return found


def promises(manifest: Manifest, numerics: str, layers: str = "") -> bool:
    """Whether a plugin declares that a request's results depend on that request alone. layers: the layer kind that it
    serves.
    """
    capabilities = manifest.spec.capabilities
    slowly = numerics == "reference" and capabilities.get("reference_numerics")
    always = capabilities.get("batch_invariant") or layers in capabilities.get("invariant_kinds", ())
    return bool(always or slowly)


def _sentence(manifest: Manifest) -> str:
    kind, name = manifest.row.kind, manifest.row.name
    way_out = "choose another that does" if kind == "attention" else f"--plugins no:{name} leaves it out"
    way_out = WAY_OUT if manifest.spec.capabilities.get("reference_numerics") else way_out
    return f"{kind} plugin '{name}' does not declare batch_invariant; {way_out}"


def _given_up(manifest: Manifest, layers: str, own: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each of a plugin's own arguments that gives up the guarantee for the layers that it serves."""
    kind, name = manifest.row.kind, manifest.row.name
    for argument, values in manifest.spec.capabilities.get("variant_arguments", {}).items():
        value = str(own.get(argument))
        if values.get(value) == layers:
            yield f"--{kind}-config.{name}.{argument} {value}: it is not batch_invariant; leave the argument out"
