"""The choice of the quantization method that unpacks, or packs, the weights of a checkpoint.

Owns: that stage. Never does: pack, or know the name of a method: the caller provides the other names that methods have.
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
"""Tensor types of checkpoints that need no quantization method; the last two are those of buffers that no layer reads."""


@dataclass(frozen=True, slots=True)
class OtherNames:
    """Names of methods that are not names of plugins. An installed plugin with the same name takes precedence.

    aliases: alternative names of methods that are served → the names of their plugins.
    refused: methods that cannot be served → what to do instead.
    tools: names of tools rather than of methods, which mean the method that the checkpoint declares → what to do where it
        declares none.
    """

    aliases: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)

    def way_out_of_tool(self, name: str) -> str | None:
        """Return what to do with the name of a tool where the checkpoint declares no method, None for all other names."""
        return _looked_up(self.tools, name)

    def own_name(self, name: str) -> str:
        """Return the plugin's name for an alias; every other name unchanged."""
        return _looked_up(self.aliases, name) or name

    def why_refused(self, name: str) -> str | None:
        """Return why a method of this name cannot be served, None for all other names."""
        return _looked_up(self.refused, name)


def _looked_up(table: Mapping[str, str], name: str) -> str | None:
    """Look a name up without regard to case, `-` and `_`; None when it has no entry."""
    wanted = normalize(name)
    for key, value in table.items():
        if normalize(key) == wanted:
            return value
    return None


class _Method(NamedTuple):
    """A quantization method that was named.

    own: name of its plugin.
    said: where the name comes from, as the beginning of a sentence.
    """

    own: str
    said: str


def select_quantization(
    registry: PluginRegistry, name: str | None, facts: CheckpointFacts, others: OtherNames | None = None
) -> Choice:
    """Choose the named method, else the declared one, else one that claims the checkpoint, else none.

    others: alternative names of methods; None: there are none.
    """
    if others is None:
        others = OtherNames()

    def check(manifest: Manifest) -> Sequence[object]:
        return list(manifest.call("core_supports", query=facts))

    declared = None
    if facts.quantization is not None:
        declared = _method(registry, facts.quantization, "the checkpoint declares", others)
    way_out = None if name is None or registry.find("quantization", name) is not None else others.way_out_of_tool(name)
    if way_out is not None and declared is not None:
        said = f"--quantization {name}, which means what the checkpoint declares: {declared.own}"
        return explicit(registry, "quantization", "quantization", declared.own, check, said)
    if way_out is not None:
        raise UserError(f"--quantization {name}: the checkpoint declares no method; {way_out}.")
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
    """Return the method that a name stands for. Raises UserError for one that cannot be served."""
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
