"""What a step costs, on paper, in the layout that the arguments ask for: ranks that share layers, engines that share nothing.

Owns: the speeds that are assumed of a machine, and the steps that are priced. Never does: measure, or start a rank.
Called by: resolve, for `core config explain`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from core.api.config import EngineConfig
from core_config.adapter_cost import adapter_notes
from core_config.context_cost import context_notes
from core_config.experts import bytes_without_copies, outputs_bytes
from core_config.parallel_cost import Layout, Machine, StepCost, StepShape, plain_bytes, step_cost
from core_config.stages.memory import MemoryPlan, human_bytes
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.expert_placement import ExpertPlacement
from core_runtime.specs.model_part import Part
from core_runtime.specs.module_spec import ModelSpec
from core_runtime.specs.stages import fewest_together, stages_of

LATENCY: Final = 1e-6
BANDWIDTH: Final = 8e9
MEMORY: Final = 40e9
"""Two processes on a server processor with two cores, one thread each. Sums in shared memory took 1.2 µs for 4 KB and 124 µs
for 1 MB while neither rank slept, and 36 µs for 4 B when one had to be woken. Both together read 40 GB/s of memory."""

ASSUMED: Final = (
    f"assumed: {LATENCY * 1e6:.0f} us a message, {BANDWIDTH / 1e9:.0f} GB/s between ranks while none sleeps, and "
    f"{MEMORY / 1e9:.0f} GB/s of memory that all share, as measured on two cores of a server processor"
)
NOT_COUNTED: Final = "not counted: computing, the KV cache, and waiting for the slowest rank"
GLOO: Final = "--disable-custom-all-reduce: gloo, which is not priced, is slower: about 200 us for a sum of 4 KB"

NODES: Final = "--nnodes: what hosts exchange is not priced: each sum, and each step, takes a delay of the network more"


class LayoutCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of steps in a layout. ranks: of an engine. steps: cost by the kind of step. notes: sentences about both."""

    ranks: int
    engines: int
    steps: dict[str, StepCost]
    notes: list[str]


def layout_cost(
    spec: ModelSpec,
    engine: EngineConfig,
    memory: MemoryPlan,
    *,
    dtype: str,
    tensor: int,
    stages: int,
    gloo: bool,
    nodes: int,
    experts: ExpertPlacement,
    context: int,
) -> LayoutCost | None:
    """Return the cost of steps in which every sequence gets a token; None for one engine of one rank.

    dtype: of tensors between layers.
    tensor, stages: see `core_config.parallel_cost.Layout`.
    gloo: whether ranks exchange tensors with gloo. nodes: hosts that have the ranks.
    experts: how the ranks of a stage share experts.
    context: ranks that divide keys by positions.
    """
    engines, ranks = engine.data_parallel_started or engine.data_parallel_size, tensor * stages
    if ranks == engine.data_parallel_size == 1:
        return None
    steps = {}
    weights = bytes_without_copies(spec, experts, memory.weights, engine.model.dtype)
    if isinstance(spec, DecoderSpec):
        machine = Machine(latency=LATENCY, bandwidth=BANDWIDTH, memory=MEMORY / (ranks * engines), shots=(1,))
        fewest = fewest_together(spec, stages_of(spec, stages))
        for sequences in sorted({1, memory.limits.sequences}):
            rows = sequences if stages == 1 else min(sequences, max(-(-sequences // stages), fewest))
            flights = -(-sequences // rows)
            chunks = -(-rows // memory.limits.logit_rows)
            step = StepShape(tokens=rows, rows=rows, chunks=chunks, dtype=dtype, alternates=flights > 1)
            name = f"a token of {sequences} sequence{'s' if sequences > 1 else ''}"
            if flights > 1:
                name += f", {rows} in each of {flights} steps in flight"
            layout = Layout(tensor=tensor, pipeline=stages, experts=experts)
            steps[name] = step_cost(spec, layout, step, machine, flights, weights)
    apart = [f"nothing is sent between the {engines} engines; each reads its own weights"] if engines > 1 else []
    if engine.data_parallel_started:
        most = engine.data_parallel_size
        apart.append(
            f"--elastic-ep-max-dp-size: up to {most} engines, with 1 of {most} shares of the compute threads each"
        )
    shared = _shared_experts(spec, memory, tensor, experts)
    if isinstance(spec, DecoderSpec):
        part = spec.local(Part(size=tensor, experts=experts))
        shared += context_notes(part, context, memory.block_size) + adapter_notes(spec, part, engine.adapters)
    return LayoutCost(
        ranks=ranks,
        engines=engines,
        steps=steps,
        notes=[*apart, *shared, *([GLOO] if gloo else []), *([NODES] if nodes > 1 else []), ASSUMED, NOT_COUNTED],
    )


def _shared_experts(spec: ModelSpec, memory: MemoryPlan, ranks: int, experts: ExpertPlacement) -> list[str]:
    """Return what a rank holds of the experts, in at most one sentence."""
    if ranks == 1 or not isinstance(spec, DecoderSpec):
        return []
    local = spec.local(Part(size=ranks, experts=experts))
    held = {block.experts.held: block.experts.count for block in local.blocks if block.experts is not None}
    if not held:
        return []
    plain = plain_bytes(local, "float32")
    alone = sum(
        part.shape[-2] * part.shape[-1] * 4
        for index in range(len(local.blocks))
        for expert in local.expert_linears(index)
        for part in (*expert.gate_up, *expert.down)
    )
    nbytes = memory.weights // ranks * alone // plain
    slots = sorted({f"{each.per_rank} of {count}" for each, count in held.items() if each is not None})
    found = f"experts: a rank holds {' or '.join(slots)} of each layer, about {human_bytes(nbytes)}"
    buffer = outputs_bytes(spec, experts, memory.limits)
    more = f", and up to {human_bytes(buffer)} of their outputs in a step" if buffer else ""
    return [found + more]
