"""Which method unpacks, or packs, the weights of a checkpoint.

Owns: that stage, and other names of methods. Never does: pack. Called by: the configuration, for the model and for its draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from core.api.checkpoint_facts import CheckpointFacts
from core.api.errors import UserError
from core.plugin.kinds import normalize
from core.plugin.manifest import Manifest
from core.plugin.quantization_names import own_name, why_refused
from core.plugin.ranking import Choice, explicit, ranked
from core.plugin.registry import PluginRegistry
from core.plugin.rehearsal import Call
from core.plugin.selection.checkpoint import unclaimed

PLAIN_DTYPES: Final = frozenset({"F64", "F32", "F16", "BF16", "I64", "BOOL"})
"""Of checkpoints that need no quantization method; the last two are buffers that nobody reads."""


class _Method(NamedTuple):
    """A quantization method that was named.

    own: its plugin's name.
    said: who named it, and how.
    """

    own: str
    said: str


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
        return unclaimed(manifest, facts, claims) or check(manifest)

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
    if registry.find("quantization", name) is not None:
        return _Method(name, said)
    why = why_refused(name)
    if why is not None:
        raise UserError(f"{said}: {why}.")
    own = own_name(name)
    return _Method(own, said if own == name else f"{said}, another name of {own}")


def _same_method(registry: PluginRegistry, name: str, declared: str) -> bool:
    """Whether the method that the user named is the one that the checkpoint declares, or an alias of it."""
    _, _, plain = name.rpartition(":")
    if normalize(plain) == normalize(declared):
        return True
    method = registry.find("quantization", declared)
    return method is not None and method.row.name == registry.get("quantization", name).row.name
