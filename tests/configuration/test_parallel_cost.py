"""The formulas of communication, against what parts of tiny models and ranks that count their messages do."""

from collections.abc import Sequence
from functools import cache

import msgspec
import numpy as np
import pytest
import torch

from core_config.parallel_cost import (
    COMMAND_BYTES,
    HEAD_BYTES,
    WEIGHTS,
    Layout,
    Machine,
    StepShape,
    idle_share,
    num_sums,
    plan_bytes,
    step_cost,
    sum_traffic,
)
from core_runtime.models.families import decoder_spec
from core_runtime.specs.model_part import Part
from core_runtime.specs.stages import stages_of
from tests.models.harness import Harness
from tests.models.test_parts import CONFIGS, IDS, SEQUENCES, checkpoint

MACHINE = Machine(latency=1e-5, bandwidth=5e10, memory=3e12)
TOKENS = len(IDS)
STEP = StepShape(tokens=TOKENS, rows=TOKENS, dtype="float32")
LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
"""The shape of Llama 3 70B."""


class Ranks:
    """Ranks that send arrays to each other. messages, nbytes: what each has sent."""

    def __init__(self, size: int) -> None:
        self.messages = [0] * size
        self.nbytes = [0] * size

    def send(self, source: int, array: np.ndarray) -> np.ndarray:
        self.messages[source] += 1
        self.nbytes[source] += array.nbytes
        return array

    @property
    def numbers(self) -> range:
        return range(len(self.messages))

    def to_others(self, arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """What each rank then has, in the order of the ranks."""
        return [
            [array if other == rank else self.send(other, array) for other, array in enumerate(arrays)]
            for rank in self.numbers
        ]


def summed_in_one_shot(ranks: Ranks, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.sum(all_parts, axis=0) for all_parts in ranks.to_others(parts)]


def summed_in_two_shots(ranks: Ranks, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    pieces = [np.split(part, len(parts)) for part in parts]
    sums = []
    for rank in ranks.numbers:
        mine = [pieces[o][rank] if o == rank else ranks.send(o, pieces[o][rank]) for o in ranks.numbers]
        sums.append(np.sum(mine, axis=0))
    return [np.concatenate(all_sums) for all_sums in ranks.to_others(sums)]


@cache
def whole(name: str) -> Harness:
    return Harness(*checkpoint(name))


def counted(name: str, part: Part) -> tuple[Harness, list[int], torch.Tensor]:
    """A part, the bytes of each tensor that it adds up with others, and its logits."""
    sums: list[int] = []
    rank = Harness(*checkpoint(name), part=part, reduce=lambda tensor: sums.append(tensor.nbytes))
    return rank, sums, rank.run(SEQUENCES)


def shares(name: str, layout: Layout) -> dict[str, tuple[int, int]]:
    cost = step_cost(decoder_spec(CONFIGS[name].to_dict()), layout, STEP, MACHINE)
    return {share.name: (share.messages, share.nbytes) for share in cost.shares}


# mixtral has 4 experts; the inner sizes of the deepseek models are no multiples of 8.
IN_PARTS = [
    (name, size) for name in CONFIGS for size in (2, 4, 8) if size < 8 or not name.startswith(("mixtral", "deepseek"))
]


@pytest.mark.parametrize(("name", "size"), IN_PARTS)
def test_a_part_adds_up_as_much_as_the_formula_says(name: str, size: int) -> None:
    rank, sums, logits = counted(name, Part(0, size))
    assert sums == [TOKENS * rank.spec.hidden_size * STEP.sum_bytes] * num_sums(rank.spec)
    told = shares(name, Layout(tensor=size))
    assert told["sums"] in [sum_traffic(len(sums), sum(sums), size, shots=shots) for shots in (1, 2)]
    assert told["logits"] == (1, logits.nbytes)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_stages_add_up_their_own_blocks_and_send_the_residual_stream(name: str) -> None:
    blocks = stages_of(whole(name).spec, 2)
    assert blocks == [(0, 2), (2, 3)]  # the head counts for the last one
    found = [counted(name, Part(0, 2, each)) for each in blocks]
    for rank, sums, _ in found:
        assert len(sums) == num_sums(rank.spec)
    assert sum(len(sums) for _, sums, _ in found) == num_sums(whole(name).spec)
    residual = found[0][0].model.workspace.buffer("residual")[:TOKENS]
    cost = step_cost(decoder_spec(CONFIGS[name].to_dict()), Layout(pipeline=2), STEP, MACHINE)
    first, last = ({share.name: (share.messages, share.nbytes) for share in stage} for stage in cost.stages.values())
    assert first["activations"] == (2, HEAD_BYTES + residual.nbytes)
    assert "sums" not in first and "plans" not in first and "activations" not in last


@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_that_count_send_what_the_formulas_say(size: int) -> None:
    parts = [np.full((TOKENS, 48), rank, np.float32).reshape(-1) for rank in range(size)]
    for shots, add_up in ((1, summed_in_one_shot), (2, summed_in_two_shots)):
        ranks = Ranks(size)
        for _ in range(3):
            assert all(np.array_equal(each, sum(parts)) for each in add_up(ranks, parts))
        expected = sum_traffic(3, 3 * parts[0].nbytes, size, shots=shots)
        assert set(zip(ranks.messages, ranks.nbytes, strict=True)) == {expected}


@pytest.mark.parametrize("size", [2, 4, 8])
def test_engines_that_share_experts_gather_inputs_and_scatter_outputs(size: int) -> None:
    rows = [np.zeros((TOKENS, 48), np.float32)] * size
    ranks = Ranks(size)
    expert_blocks = sum(block.experts is not None for block in whole("qwen3_moe").spec.blocks)
    for _ in range(expert_blocks):
        ranks.to_others(rows)  # each computes its experts for the tokens of all
        ranks.to_others(rows)  # and sends everybody its rows of the result
    told = shares("qwen3_moe", Layout(data=size))
    assert (ranks.messages[0], ranks.nbytes[0]) == told["experts' inputs and outputs"]


def test_the_cheaper_way_to_add_up_is_priced() -> None:
    spec = decoder_spec(LLAMA_70B)
    one_row, many_rows = (
        step_cost(spec, Layout(tensor=8), StepShape(tokens=rows, rows=rows, sum_bytes=2), MACHINE).shares[0]
        for rows in (1, 64)
    )
    assert (one_row.name, one_row.messages) == ("sums", 161 * 7)
    assert (many_rows.name, many_rows.messages) == ("sums", 161 * 14)
    assert many_rows.nbytes == 161 * 64 * 8192 * 2 * 2 * 7 // 8  # 295 MB


def test_the_largest_part_of_a_step_is_named() -> None:
    spec = decoder_spec(LLAMA_70B)
    step = StepShape(tokens=1, rows=1)
    alone = step_cost(spec, Layout(), step, MACHINE)
    assert alone.largest.name == WEIGHTS and alone.largest.nbytes > 140e9 and alone.idle == 0.0
    slow = msgspec.structs.replace(MACHINE, latency=3e-5)
    assert step_cost(spec, Layout(tensor=8), step, slow).largest.name == "sums"
    lines = step_cost(spec, Layout(tensor=8, pipeline=2), step, slow).lines()
    assert lines[-1] == "largest: sums" and lines[-2].startswith("stages idle: ")


def test_the_plan_of_a_steady_step_does_not_grow_with_the_batch() -> None:
    assert plan_bytes(8) == plan_bytes(1024) < 20
    assert plan_bytes(256) + 256 * 16 <= plan_bytes(256, 256) <= plan_bytes(256) + 256 * 17, "four numbers a block"
    told = step_cost(decoder_spec(LLAMA_70B), Layout(tensor=8), StepShape(tokens=64, rows=64), MACHINE)
    assert any(share.name == "plans" and share.nbytes == 7 * (COMMAND_BYTES + plan_bytes(64)) for share in told.shares)


def simulated_idle(seconds: Sequence[float], flights: int, rounds: int = 400) -> float:
    """Idle share of stages that each compute one plan at a time, in the order in which they come."""
    free = [0.0] * len(seconds)
    ready = [0.0] * flights
    for turn in range(rounds * flights):
        now = ready[turn % flights]
        for stage, time in enumerate(seconds):
            now = free[stage] = max(now, free[stage]) + time
        ready[turn % flights] = now
    return 1.0 - rounds * flights * sum(seconds) / (len(seconds) * max(ready))


@pytest.mark.parametrize("flights", [1, 2, 4, 8])
@pytest.mark.parametrize("seconds", [[1.0] * 4, [1.0, 2.0, 1.0], [3.0, 1.0]])
def test_the_bubble_is_that_of_a_simulated_pipeline(seconds: list[float], flights: int) -> None:
    assert idle_share(seconds, flights) == pytest.approx(simulated_idle(seconds, flights), abs=0.01)


def test_as_many_equal_plans_as_equal_stages_leave_no_bubble() -> None:
    assert idle_share([1.0] * 4, 4) == 0.0
    assert idle_share([1.0] * 4, 1) == 0.75
