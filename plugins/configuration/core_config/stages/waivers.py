"""Waivers: chosen plugins that do not guarantee the same tokens for the same request.

Owns: the sentences, and what `--batch-invariant` demands. Never does: choose, or judge whether a plugin does what it
declares (`core plugins check` does). Called by: resolve, the stages that choose.

The guarantee holds when each plugin that computes declares `batch_invariant` (or, among `invariant_kinds`, the layer
kind that it serves), or declares `reference_numerics` and runs with --numerics reference. Drafts waive nothing: they
are verified by the target model with the request's own noise, unless the user chooses another rule of acceptance
(`core_config.speculation.acceptance`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from core.api.specs import AttentionSpec, MixerSpec
from core.plugin.manifest import Manifest
from core_config.selection.kernels import is_idle
from core_config.selection.ranking import Check, Choice, no_reasons
from core_config.selection.reasons import invariance_reasons, promises
from core_config.stages.chosen import Chosen
from core_config.stages.forms import Form, serves
from core_config.stages.settings import Settings, underscored

WAY_OUT = "--numerics reference makes it independent, slowly"


def waivers(
    chosen: Chosen,
    numerics: str,
    device: str,
    forms: Sequence[Form],
    given: Mapping[str, Mapping[str, Any]],
    *,
    requested: bool = False,
) -> list[str]:
    """Return a sentence for each part whose results may depend on neighbours, chunks or caches; empty when there is
    none.

    device: its type. forms: of the matrices. Kernels that never compute because of earlier providers waive nothing.
    given: own arguments of plugins by kind, and by name.
    requested: whether `--batch-invariant` was given, which some plugins keep only then.
    """
    found = []
    for stage, choice in chosen.stages.items():
        layers = stage.partition(".")[2]
        for manifest in choice.manifests:
            if manifest.row.kind not in ("attention", "kernels") or _is_idle(manifest, choice, forms, device):
                continue
            if not promises(manifest.spec, numerics, layers, requested=requested):
                found.append(_sentence(manifest, layers, named=manifest.row in choice.named))
            for argument in given_up(manifest, layers, given):
                found.append(f"{argument}: it is not batch_invariant; leave the argument out")
    kernels = chosen.stages.get("kernels")
    if numerics == "fast" and (kernels is None or not kernels.manifests):
        found.append(
            f"kernels: no plugin fits, and operations in plain torch depend on the batch they run in; {WAY_OUT}"
        )
    return list(dict.fromkeys(found))


def attention_surprises(chosen: Chosen, numerics: str, device: str, mixers: Iterable[MixerSpec]) -> list[str]:
    """Return a sentence for each attention plugin on a processor that the user did not name and that promises nothing.

    Encoders are not named: they see a sequence whole, so there are no chunks that could change their bits.
    """
    if device != "cpu":
        return []
    encoding = {mixer.kind for mixer in mixers if isinstance(mixer, AttentionSpec) and not mixer.causal}
    found = []
    for stage, choice in chosen.stages.items():
        part, _, kind = stage.partition(".")
        if part != "attention" or kind in encoding:
            continue
        for manifest in choice.manifests:
            name = manifest.row.name
            if manifest.row in choice.named or promises(manifest.spec, numerics, kind):
                continue
            found.append(
                f"attention plugin '{name}' computes the layers of kind '{kind}', and none that keeps a request's bits apart "
                f"from batch, chunks and drafts can (`core config explain` says why); {WAY_OUT}, and --attention-backend "
                f"{name} says that other bits are accepted."
            )
    return found


def surprises(chosen: Chosen, device: str, forms: Sequence[Form]) -> list[str]:
    """Return a sentence for each provider of kernels that the user did not name and whose bits vary with the batch."""
    choice = chosen.stages.get("kernels")
    if choice is None:
        return []
    found = []
    for manifest in choice.manifests:
        varies = manifest.spec.capabilities.get("varies")
        if varies and manifest.row not in choice.named and not _is_idle(manifest, choice, forms, device):
            name = manifest.row.name
            found.append(
                f"kernels plugin '{name}' gives other bits {varies}, so a request's tokens may depend on the batch; "
                f"--batch-invariant keeps them the same, --kernels {name},auto says that speed is wanted."
            )
    return found


def _is_idle(manifest: Manifest, choice: Choice, forms: Sequence[Form], device: str) -> bool:
    """Whether a provider of kernels has nothing to compute: others come first, or no matrix is held in its formats."""
    limited = manifest.row.kind == "kernels" and "formats" in manifest.spec.capabilities
    if limited and not any(serves(manifest, form.query) for form in forms):
        return True
    return is_idle(manifest, choice.manifests, device)


def wanted_promise(settings: Settings, layers: str = "") -> Check:
    """Return what `--batch-invariant` has against a plugin that the user did not name. layers: the layer kind."""
    if not settings["batch_invariant"]:
        return no_reasons
    return lambda manifest: invariance_reasons(manifest.spec, settings["numerics"], layers)


def _sentence(manifest: Manifest, layers: str, *, named: bool) -> str:
    kind, name = manifest.row.kind, manifest.row.name
    capabilities = manifest.spec.capabilities
    if capabilities.get("reference_numerics"):
        way_out = WAY_OUT
    elif layers in capabilities.get("invariant_on_request", ()):
        way_out = "--batch-invariant has it keep bits"
    elif kind == "attention":
        way_out = "choose another that does"
    elif named:
        way_out = f"--plugins no:{name} leaves it out"
    else:
        way_out = "--batch-invariant leaves it out"
    return f"{kind} plugin '{name}' does not declare batch_invariant; {way_out}"


def given_up(manifest: Manifest, layers: str, given: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield each of a plugin's own arguments that gives up the guarantee for the layers that it serves.

    given: see `waivers`.
    """
    kind, name = manifest.row.kind, manifest.row.name
    own = underscored(given[kind].get(name) or {})
    for argument, values in manifest.spec.capabilities.get("variant_arguments", {}).items():
        value = str(own.get(argument))
        if values.get(value) == layers:
            yield f"--{kind}-config.{name}.{argument} {value}"
