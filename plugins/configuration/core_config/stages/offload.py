"""The weights that lie in host memory: which matrices, and their bytes there and on the device.

Owns: the choice by the arguments, and the counts. Never does: check an argument alone (rules do), read a weight.
Called by: the stage of sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.api.errors import UserError
from core.api.specs import LayerSpec
from core.args.schema import flag_of
from core_config.rules.offload import PREFETCH, backend_of
from core_config.stages.settings import Settings
from core_runtime.specs.block_parts import mixer_parts
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.weight_offload import ABSORBED, Groups, OffloadConfig, is_named, names_of, parts_by_role

GIB = 1 << 30

Counter = Callable[[Sequence[LayerSpec]], int]
"""Returns the bytes of parts that may become one kernel."""


@dataclass(frozen=True, slots=True)
class PlannedOffload:
    """The weights in host memory. config: None without any. host: their bytes. slots: bytes of all slots on the device; 0 for
    `uva`.
    """

    config: OffloadConfig | None = None
    host: int = 0
    slots: int = 0


def planned_offload(settings: Settings, spec: DecoderSpec, count: Counter) -> PlannedOffload:
    """Return what lies in host memory. Raises UserError for names that no matrix has."""
    backend = backend_of(settings)
    if not backend:
        return PlannedOffload()
    named = _named_blocks(settings, spec, "offload_params" if backend == PREFETCH else "cpu_offload_params")

    def nbytes(index: int, role: str, groups: Groups) -> int:
        if role == ABSORBED:  # stored as plain matrices, one of each head
            return sum(half.shape[0] * count([half]) for half in mixer_parts(spec, index).halves)
        return sum(count(parts) for parts in groups)

    roles: dict[str, tuple[str, ...]] = {}
    host = largest = 0
    left = int(settings["cpu_offload_gb"] * GIB)
    for index, block in enumerate(named):
        sizes = {role: nbytes(index, role, groups) for role, groups in block.items()}
        if backend == PREFETCH:
            size, kept = settings["offload_group_size"], settings["offload_num_in_group"]
            taken = sizes if index % size >= size - kept else {}
        else:
            taken = _fitting(sizes, left)
            left -= sum(taken.values())
        if taken:
            roles[str(spec.first_block + index)] = tuple(taken)
            host += sum(taken.values())
            largest = max(largest, sum(taken.values()))
    if not roles:
        return PlannedOffload()
    num_slots = min(settings["offload_prefetch_step"] + 1, len(roles)) if backend == PREFETCH else 0
    config = OffloadConfig(roles=roles, in_place=backend != PREFETCH, slots=num_slots, nbytes=host)
    return PlannedOffload(config, host, num_slots * largest)


def _named_blocks(settings: Settings, spec: DecoderSpec, argument: str) -> list[dict[str, Groups]]:
    """Return the matrices of each block that an argument names. Raises UserError for names that no matrix has."""
    blocks = [parts_by_role(spec, index) for index in range(len(spec.blocks))]
    segments: list[str] = settings[argument]
    for segment in segments:
        if not any(is_named([segment], names_of(role, groups)) for block in blocks for role, groups in block.items()):
            some = sorted(blocks[-1]) if blocks else []
            raise UserError(
                f"{flag_of(argument)} {segment}: no matrix of a block has this segment in its name; the last block has "
                f"{', '.join(some)}, such as {next(names_of(some[0], blocks[-1][some[0]]), '')}."
            )
    return [
        {role: groups for role, groups in block.items() if is_named(segments, names_of(role, groups))}
        for block in blocks
    ]


def _fitting(sizes: dict[str, int], left: int) -> dict[str, int]:
    """Return the matrices, in order, that fit into what is left of the host's bytes."""
    taken: dict[str, int] = {}
    for role, size in sizes.items():
        if size <= left:
            taken[role] = size
            left -= size
    return taken
