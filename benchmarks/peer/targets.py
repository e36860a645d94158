"""What this project wants to reach against each peer and against the machine.

Owns: the table of targets, and whether each is met. Never does: measure. Called by: the report, the plot.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peer.checkpoints import Shape
from benchmarks.peer.results import Results


@dataclass(frozen=True, slots=True)
class Target:
    """`ours` over `theirs` in one figure; at least `bound`, or at most when `at_most`. other: theirs is in that scenario."""

    scenario: str
    figure: str
    ours: str
    theirs: str
    bound: float
    at_most: bool = False

    @property
    def goal(self) -> str:
        """As shown: `≥ 2.4×`."""
        return f"{'≤' if self.at_most else '≥'} {self.bound:.2g}×"

    def met(self, ratio: float) -> bool:
        """Whether a ratio reaches it."""
        return ratio <= self.bound if self.at_most else ratio >= self.bound


def _rows(scenario: str, figure: str, ours: str, bounds: dict[str, float], *, at_most: bool = False) -> list[Target]:
    return [Target(scenario, figure, ours, theirs, bound, at_most) for theirs, bound in bounds.items()]


VLLM, LLAMA, OPENVINO, HF = "vLLM bf16", "llama.cpp bf16", "OpenVINO fp16", "transformers bf16"
TARGETS = (
    *_rows("s1", "decode tok/s", "core bf16", {VLLM: 2.4, LLAMA: 1.6, OPENVINO: 1.8}),
    *_rows(
        "s1", "decode tok/s", "core Q4_1", {VLLM: 4, "llama.cpp Q4_1": 2.5, "ik_llama.cpp Q4_1": 1, "OpenVINO int8": 3}
    ),
    *_rows("s2", "prompt tok/s", "core bf16", {VLLM: 1, LLAMA: 2.5, OPENVINO: 1}),
    *_rows("s2", "prompt tok/s", "core Q4_1", {"llama.cpp Q4_1": 6, "ik_llama.cpp Q4_1": 1.5}),
    *_rows("s3", "output tok/s", "core bf16", {VLLM: 1.4, LLAMA: 2, OPENVINO: 1.4}),
    *_rows("s3", "output tok/s", "core W8A8", {"core bf16": 2.2, "llama.cpp Q8_0": 3, "OpenVINO int8": 2}),
    *_rows("s4", "seconds", "core bf16", {VLLM: 1 / 1.45, LLAMA: 1 / 5, OPENVINO: 1 / 5}, at_most=True),
    *_rows("s5", "output tok/s", "core bf16", {VLLM: 1.5, LLAMA: 2.5}),
    *_rows("s5", "TTFT p50 ms", "core bf16", {VLLM: 0.6, LLAMA: 1}, at_most=True),
    *_rows("s5", "TTFT p99 ms", "core bf16", {VLLM: 1, LLAMA: 1}, at_most=True),
    *_rows("s5", "ITL p99 ms", "core bf16", {VLLM: 0.5, LLAMA: 1}, at_most=True),
    *_rows("s5-poisson", "goodput", "core bf16", {VLLM: 1.5, LLAMA: 2.5}),
    *_rows("s6", "start s", "core bf16", {VLLM: 1 / 25, LLAMA: 5}, at_most=True),
    *_rows("s6", "memory less KV MB", "core bf16", {VLLM: 1 / 3, LLAMA: 1}, at_most=True),
    *_rows("s8", "sentences/s", "core bf16", {HF: 1.4, LLAMA: 4}),
)


@dataclass(frozen=True, slots=True)
class LimitShare:
    """How much of what the machine can do was used. wanted: the share to reach."""

    what: str
    share: float
    wanted: float


def limit_shares(results: Results, shape: Shape) -> list[LimitShare]:
    """S1 against the memory reads, S2 against the bf16 products, each with the better of the block's two measurements."""
    shares = []
    rate, limit = results.value("s1", "core bf16", "decode tok/s"), _limit(results, "s1", "read 270 MB")
    if rate and limit:
        shares.append(LimitShare("S1 bf16: weights read, of the bandwidth", rate * shape.step_bytes / limit / 1e9, 0.7))
    rate, limit = results.value("s2", "core bf16", "prompt tok/s"), _limit(results, "s2", "bf16 matmul")
    if rate and limit:
        flops = shape.prefill_flops(1024) / 1024
        shares.append(
            LimitShare("S2 bf16: products with attention's, of the matmul peak", rate * flops / limit / 1e9, 0.8)
        )
    return shares


def _limit(results: Results, scenario: str, name: str) -> float | None:
    block = results.blocks.get(scenario)
    return None if block is None else max(block["before"][name], block["after"][name])
