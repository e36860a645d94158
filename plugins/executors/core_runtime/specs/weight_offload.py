"""Weights that lie in host memory: which matrices of a model, and how its kernels come to them.

Owns: `OffloadConfig`, the choice of matrices by blocks and by names, and how it is read from an `EngineConfig`.
Never does: count bytes, allocate or copy. Called by: configuration (writes), loading of weights (reads).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from core.api.config import EngineConfig
from core.api.specs import LayerSpec
from core_runtime.specs.block_parts import mixer_parts
from core_runtime.specs.decoder_spec import DecoderSpec

WEIGHT_OFFLOAD: Final = "executor.weight_offload"
"""Key of the settings among the arguments of plugins (`PluginChoices.arguments`)."""
EXPERTS: Final = "experts"
"""Role of all experts of a block together."""
ABSORBED: Final = "absorbed"
"""Role of the matrix that latent attention holds by heads."""

Groups = tuple[tuple[LayerSpec, ...], ...]
Roles = Mapping[str, Sequence[str]]
"""Number of a block of the whole model, as text → roles of its matrices."""


class OffloadConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The weights that lie in host memory.

    roles:    roles of matrices in host memory, by the number of the block; see `parts_by_role`.
    in_place: kernels read the host's memory; otherwise weights are copied to slots on the device first.
    slots:    number of slots: one that is computed with, and one for each block that is copied ahead.
    nbytes:   planned bytes in host memory.
    """

    roles: dict[str, tuple[str, ...]]
    in_place: bool = False
    slots: int = 0
    nbytes: int = 0


def offload_of(config: EngineConfig) -> OffloadConfig | None:
    """Return the weights in host memory; None: all are on the device. Raises msgspec.ValidationError for invalid values."""
    given = config.plugins.arguments.get(WEIGHT_OFFLOAD)
    return None if given is None else msgspec.convert(given, OffloadConfig)


def without_offload(config: EngineConfig) -> EngineConfig:
    """Return the configuration with all weights on the device."""
    arguments = {name: values for name, values in config.plugins.arguments.items() if name != WEIGHT_OFFLOAD}
    return msgspec.structs.replace(config, plugins=msgspec.structs.replace(config.plugins, arguments=arguments))


def parts_by_role(spec: DecoderSpec, index: int) -> dict[str, Groups]:
    """Return the matrices of a block by role; parts of one entry may become one kernel."""
    found: dict[str, Groups] = {role: (parts,) for role, parts in spec.block_linears(index).items()}
    experts = spec.expert_linears(index)
    if experts:
        found[EXPERTS] = tuple(parts for expert in experts for parts in (expert.gate_up, expert.down))
    absorbed = mixer_parts(spec, index).absorbed
    if absorbed is not None:
        found[ABSORBED] = ((absorbed,),)
    return found


def names_of(role: str, groups: Groups) -> Iterator[str]:
    """Yield the dotted names of a role's parameters: those of the checkpoint, and those that vLLM has for fused ones."""
    for parts in groups:
        for part in parts:
            yield f"{part.name}.weight"
    first = groups[0][0].name.rpartition(".")[0]
    yield f"{first}.{role}_proj.weight"


def is_named(segments: Sequence[str], names: Iterator[str]) -> bool:
    """Whether one of the names contains one of these whole segments; every name does where no segment is given."""
    if not segments:
        return True
    return any(f".{segment}." in f".{name}." for name in names for segment in segments)


def block_of_each(spec: DecoderSpec, roles: Roles) -> dict[str, int]:
    """Return the block of each kernel in host memory, by the names of the kernel's parts joined with `+`.

    Experts have a name for each, and one for all together: providers differ in how they take them.
    """
    found: dict[str, int] = {}
    for index in range(len(spec.blocks)):
        block = spec.first_block + index
        chosen = roles.get(str(block), ())
        for role, groups in parts_by_role(spec, index).items():
            if role not in chosen:
                continue
            joined = ["+".join(part.name for part in parts) for parts in groups]
            if role == EXPERTS:
                joined.append("+".join(joined))
            for name in joined:
                found[name] = block
    return found
