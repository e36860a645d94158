"""Which method unpacks, or packs, the weights of a checkpoint.

Owns: that stage. Never does: pack, or know the name of a method: the caller brings the other names that methods have.
Called by: the configuration, for the model and for its draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from core.api.checkpoint_facts import CheckpointFacts
from core.api.errors import UserError
from core.plugin.kinds import normalize
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core.plugin.rehearsal import Call
from core_config.selection.checkpoint import unclaimed
from core_config.selection.ranking import Choice, explicit, ranked

PLAIN_DTYPES: Final = frozenset({"F64", "F32", "F16", "BF16", "I64", "BOOL"})
"""Types of checkpoints that need no quantization method; the last two are buffers that no layer reads."""


@dataclass(frozen=True, slots=True)
class OtherNames:
    """Names of methods that are not those of plugins. An installed plugin of that very name comes first.

    aliases: another name of a method that is served, and that method's own.
    refused: methods that cannot be served, and what to do instead.
    """

    aliases: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def own_name(self, name: str) -> str:
        """The method's own name of an alias; every other name as it is."""
        return _looked_up(self.aliases, name) or name

    def why_refused(self, name: str) -> str | None:
        """Why a method of this name cannot be served, None for all others."""
        return _looked_up(self.refused, name)


def _looked_up(table: Mapping[str, str], name: str) -> str | None:
    """The entry of a name, without regard to case and to `-` or `_`."""
    wanted = normalize(name)
    for key, value in table.items():
        if normalize(key) == wanted:
            return value
    return None


class _Method(NamedTuple):
    """A quantization method that was named.

    own: its plugin's name.
    said: who named it, and how.
    """

    own: str
    said: str


def select_quantization(
    registry: PluginRegistry, name: str | None, facts: CheckpointFacts, others: OtherNames | None = None
) -> Choice:
    """The method named, else the one declared, else one that claims the checkpoint, else none.

    others: names that stand for a method's own; None: there are none.
    """
    if others is None:
        others = OtherNames()

    def check(manifest: Manifest) -> Sequence[object]:
        return list(manifest.call("core_supports", query=facts))

    declared = None
    if facts.quantization is not None:
        declared = _method(registry, facts.quantization, "the checkpoint declares", others)
    if name is not None:
        asked = _method(registry, name, "--quantization", others)
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


def _method(registry: PluginRegistry, name: str, told_by: str, others: OtherNames) -> _Method:
    """The method that a name stands for. Raises UserError for one that cannot be served."""
    said = f"{told_by} '{name}'" if " " in told_by else f"{told_by} {name}"
    if registry.find("quantization", name) is not None:
        return _Method(name, said)
    why = others.why_refused(name)
    if why is not None:
        raise UserError(f"{said}: {why}.")
    own = others.own_name(name)
    return _Method(own, said if own == name else f"{said}, another name of {own}")


def _same_method(registry: PluginRegistry, name: str, declared: str) -> bool:
    """Whether the method that the user named is the one that the checkpoint declares, or an alias of it."""
    _, _, plain = name.rpartition(":")
    if normalize(plain) == normalize(declared):
        return True
    method = registry.find("quantization", declared)
    return method is not None and method.row.name == registry.get("quantization", name).row.name
