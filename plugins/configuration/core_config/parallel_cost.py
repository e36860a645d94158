"""What the ranks of a divided model send in one step, on paper: messages, bytes, and the part that takes longest. Torch-free.

Owns: the formulas, from the shape of a model and a layout. Never does: communicate, choose a layout, or read a weight.
Called by: `layout_cost`, reports about a layout that nobody has to start for them.

A message is what one rank gives to one other rank in one operation. A sum over N ranks is made in one of two ways that both
keep one order of additions. One shot: each rank sends its part to all others. Two shots: each rank adds up one Nth, for which
it gets N - 1 pieces, and sends the result to all others. The cheaper of the ways that a machine has is priced.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from core.api.step_plan import StepPlan
from core_config.stages.memory import human_bytes, weights_bytes
from core_runtime.executor.steps.plan_wire import PlanEncoder
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.expert_placement import ExpertPlacement
from core_runtime.specs.model_part import Part
from core_runtime.specs.stages import stages_of

LOGIT_BYTES = 4
TOKEN_BYTES = 8
COMMAND_BYTES = 24
"""Head of a plan on its way to the ranks."""
NO_DRAFTS_BYTES = 9
"""Length and content of an empty message of drafts."""
OUTCOME_BYTES = 13
"""What a plan for several stages has besides the plan and the tokens that were drawn since the last one."""
HEAD_BYTES = 16
"""Number and rows of a step, sent before its hidden states."""
WEIGHTS = "reading weights"


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is divided.

    tensor: ranks that share each layer, experts included. pipeline: stages. data: engines that share the experts of each
    layer, or that share nothing (1). experts: how the ranks share experts.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts: ExpertPlacement = ExpertPlacement()


class StepShape(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a step of one engine.

    tokens: tokens that it computes. rows: rows of logits. chunks: number of parts in which they are computed. dtype: of tensors
    between layers. sum_bytes: bytes of a number of a partial sum. alternates: whether the previous step had other sequences.
    """

    tokens: int
    rows: int
    chunks: int = 1
    dtype: str = "bfloat16"
    sum_bytes: int = 4
    alternates: bool = False

    @property
    def item_bytes(self) -> int:
        """Return the bytes of a number between layers."""
        return 4 if self.dtype == "float32" else 2


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Speeds of a rank. latency: seconds of a message. bandwidth: bytes a second that it sends. memory: that it reads.

    shots: ways in which its sums can be made.
    """

    latency: float
    bandwidth: float
    memory: float
    shots: tuple[int, ...] = (1, 2)


class Share(msgspec.Struct, frozen=True):
    """One part of a step of one rank: the messages and bytes that it sends, and the seconds that this takes.

    Rank 0 alone sends plans, sampled tokens and drafts; the others alone send logits. With several stages, rank 0 is in the
    last one, and the plans contain sampled tokens and drafts.

    For `WEIGHTS`, the bytes that it reads: all of its matrices, although a step may use some of the experts and rows of the
    embedding alone.
    """

    name: str
    messages: int
    nbytes: int
    seconds: float


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a rank of the slowest stage.

    shares: its parts that are not empty. idle: share of the time in which the stages wait for each other.
    stages: the parts of every stage, by its name; one stage has none.
    """

    shares: tuple[Share, ...]
    idle: float
    stages: dict[str, tuple[Share, ...]] = {}

    @property
    def largest(self) -> Share:
        """Return the part that takes longest."""
        return max(self.shares, key=lambda share: share.seconds)

    def lines(self) -> list[str]:
        """Return the report, one line a part."""
        told = []
        for name, shares in (self.stages or {"": self.shares}).items():
            told += [f"{name}{', ' if name else ''}{_line(share)}" for share in shares]
        idle = [f"stages idle: {self.idle:.0%}"] if self.stages or self.idle else []
        return [*told, *idle, f"largest: {self.largest.name}"]


def _line(share: Share) -> str:
    plural = "s" if share.messages > 1 else ""
    sent = f"{share.messages} message{plural}, " if share.messages else ""
    return f"{share.name}: {sent}{human_bytes(share.nbytes)}, {share.seconds * 1e3:.3f} ms"


def num_sums(spec: DecoderSpec) -> int:
    """Return how many tensors [tokens, hidden size] the ranks of a part add up in a step."""
    halves = sum(bool(block.mixers) + block.has_mlp for block in spec.blocks)
    shared = sum(
        spec.shared_mlp(index) is not None for index in range(len(spec.blocks))
    )  # added up apart from the experts
    return halves + shared + spec.holds_embedding


def summed_rows(spec: DecoderSpec) -> int:
    """Return how many rows of hidden size the ranks of a part add up in a step for each token.

    Where experts of all ranks are mixed in the order of a sum, the output of each choice is a row.
    """
    rows = num_sums(spec)
    for block in spec.blocks:
        held = None if block.experts is None else block.experts.held
        if block.experts is not None and held is not None and not held.placement.is_ordered:
            rows += block.experts.routing.top_k - 1
    return rows


def sum_traffic(count: int, nbytes: int, size: int, *, shots: int) -> tuple[int, int]:
    """Return messages and bytes that a rank sends for `count` sums of `nbytes` in all over `size` ranks in one shot or two."""
    others = size - 1
    if shots == 1:
        return count * others, others * nbytes
    return 2 * count * others, 2 * others * nbytes // size


def idle_share(stage_seconds: Sequence[float], flights: int) -> float:
    """Return the mean share of time in which stages are idle, with `flights` equal plans always in flight.

    A plan that leaves the last stage enters the first one again, as decoding does.
    """
    cycle = max(sum(stage_seconds), flights * max(stage_seconds))
    return 1.0 - flights * sum(stage_seconds) / (len(stage_seconds) * cycle)


def plan_bytes(sequences: int, new_blocks: int = 0, *, alternating: bool = False) -> int:
    """Return the bytes of the plan of a steady step that decodes `sequences`, of which `new_blocks` get a block.

    alternating: whether the previous plan was for other sequences.
    """
    encoder = PlanEncoder()
    slots, ones = np.arange(sequences, dtype=np.int32), np.ones(sequences, np.int32)
    for step in range(2):
        plan = StepPlan(slots, ones, ones + step, total_num_tokens=sequences, same_batch=step == 1 and not alternating)
        if step:
            plan.new_block_ids = {slot: [[sequences + slot]] for slot in range(new_blocks)}
        message = encoder.encode(plan)
    return len(message)


def step_cost(
    spec: DecoderSpec, layout: Layout, step: StepShape, machine: Machine, flights: int = 0, weights: int | None = None
) -> StepCost:
    """Return the cost of a step.

    flights: plans in flight; 0: one for each stage.
    weights: bytes of all matrices as the kernels hold them; None: as plain ones.
    Raises UserError for a model that cannot be divided this way.
    """
    held = stages_of(spec, layout.pipeline)
    density = 1.0 if weights is None else weights / plain_bytes(spec, step.dtype)
    stages = [
        _stage(
            spec.local(Part(size=layout.tensor, blocks=blocks, experts=layout.experts)), layout, step, machine, density
        )
        for blocks in held
    ]
    seconds = [sum(share.seconds for share in shares) for shares in stages]
    slowest = stages[seconds.index(max(seconds))]
    names = [
        f"stage {number} of {len(held)}, blocks {start} to {stop - 1}" for number, (start, stop) in enumerate(held, 1)
    ]
    named = {name: tuple(shares) for name, shares in zip(names, stages, strict=True)} if len(held) > 1 else {}
    return StepCost(shares=tuple(slowest), idle=idle_share(seconds, flights or layout.pipeline), stages=named)


def plain_bytes(spec: DecoderSpec, dtype: str) -> int:
    """Return the bytes of all matrices without quantization."""
    return weights_bytes(spec, None, dtype, lambda form: 1)


def _stage(local: DecoderSpec, layout: Layout, step: StepShape, machine: Machine, density: float) -> list[Share]:
    """Return the parts of a step of one rank of one stage. density: bytes of a matrix for each byte of a plain one."""
    tokens_bytes = step.tokens * local.hidden_size * step.item_bytes
    sums, sum_bytes = num_sums(local), summed_rows(local) * step.tokens * local.hidden_size * step.sum_bytes
    shares = []

    def add(name: str, messages: int, nbytes: int) -> None:
        if messages:
            shares.append(Share(name, messages, nbytes, messages * machine.latency + nbytes / machine.bandwidth))

    ways = [sum_traffic(sums, sum_bytes, layout.tensor, shots=shots) for shots in machine.shots]
    add("sums", *min(ways, key=lambda way: way[0] * machine.latency + way[1] / machine.bandwidth))
    if local.holds_head and layout.tensor > 1:
        add("logits", step.chunks, step.rows * local.vocab_size * LOGIT_BYTES)
    if not local.holds_head:
        add("activations", 2, HEAD_BYTES + tokens_bytes)
    takers = layout.tensor - 1 if layout.pipeline == 1 else 0
    add("sampled tokens", takers * step.chunks, takers * step.rows * TOKEN_BYTES)
    others = layout.data - 1
    expert_blocks = sum(block.experts is not None for block in local.blocks)
    add("experts' inputs and outputs", 2 * expert_blocks * others, 2 * expert_blocks * others * tokens_bytes)
    followers = layout.tensor * layout.pipeline - 1 if local.holds_head else 0
    if layout.pipeline > 1:
        sent = plan_bytes(step.rows, alternating=step.alternates) + OUTCOME_BYTES + step.rows * TOKEN_BYTES
        add("plans", followers, followers * (COMMAND_BYTES + sent))
    else:
        add("plans", followers, followers * (COMMAND_BYTES + plan_bytes(step.rows)))
        add("drafts", 2 * followers, followers * NO_DRAFTS_BYTES)
    read = round(density * plain_bytes(local, step.dtype))
    return [*shares, Share(WEIGHTS, 0, read, read / machine.memory)]
