"""What two ranks send each other in a step is what `core config explain` says."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core_config.parallel_cost import COMMAND_BYTES, WEIGHTS
from core_config.resolve import resolve
from core_distributed import commands
from core_distributed.executor import RanksExecutor
from core_platforms.cpu.ranks import SharedCommunicator, SharedGroup
from tests.ranks.test_experts import MOE
from tests.tiny_models import save_checkpoint, save_model

STEADY = slice(3, 10)
"""Steps in which each sequence gets a token in a block that it has."""


class Counted:
    """Messages and bytes of each command, as rank 0 sees them: what it sends, and the logits that the other rank sends."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.commands: list[Counter[tuple[str, str]]] = []
        self._watch(patch, SharedGroup, "begin", lambda group, number: self.commands.append(Counter()))
        self._watch(patch, SharedGroup, "write", lambda group, data: self._add("plans", len(data)))
        self._watch(
            patch, SharedGroup, "broadcast", lambda group, array, root: self._add(self._broadcast(), array.nbytes)
        )
        self._watch(patch, SharedCommunicator, "all_reduce", lambda ranks, x: self._add("sums", x.nbytes))
        self._watch(
            patch,
            SharedCommunicator,
            "all_gather",
            lambda ranks, x, out, start, root=None: self._add("logits", out.nbytes - x.nbytes),
        )

    def _watch(self, patch: pytest.MonkeyPatch, kind: type, name: str, told: Any) -> None:
        real = getattr(kind, name)

        def method(*arguments: Any) -> Any:
            told(*arguments)
            return real(*arguments)

        patch.setattr(kind, name, method)

    def _broadcast(self) -> str:
        """The first broadcast of a step has its tokens, and the others its drafts."""
        return "drafts" if ("sampled tokens", "messages") in self.commands[-1] else "sampled tokens"

    def _add(self, name: str, nbytes: int) -> None:
        if self.commands:
            self.commands[-1][name, "messages"] += 1
            self.commands[-1][name, "nbytes"] += nbytes

    def taken(self) -> list[dict[str, tuple[int, int]]]:
        """What was counted since the last call, by command."""
        found, self.commands[:] = [dict(each) for each in self.commands], []
        return [
            {name: (each[name, "messages"], each[name, "nbytes"]) for name, what in each if what == "messages"}
            for each in found
        ]


SPREAD = {"enable_expert_parallel": True, "enable_eplb": True, "num_redundant_experts": 4}


@pytest.mark.parametrize(
    "experts",
    [pytest.param(False, id="dense", marks=pytest.mark.slow), pytest.param(True, id="experts of all ranks mixed")],
)
def test_two_ranks_send_what_is_explained(experts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    path = str(save_model(tmp_path / "model", MOE) if experts else save_checkpoint(tmp_path / "model"))
    settings = {
        "model": path, "tensor_parallel_size": 2, "max_model_len": 64, "kv_cache_memory_bytes": "8M", "max_num_seqs": 3,
        "enforce_eager": True, **(SPREAD if experts else {}),
    }  # fmt: skip
    layout = resolve(settings, context="explain").layout
    assert layout is not None and layout.ranks == 2
    assert any("a rank holds 6 of 8 of each layer" in note for note in layout.notes) == experts
    llm = LLM(**settings, use_tqdm_on_load=False)
    executor = llm.llm_engine._client.core.executor
    assert isinstance(executor, RanksExecutor)
    for sequences, cost in zip((1, 3), layout.steps.values(), strict=True):
        counted.taken()
        prompts = [[1, 2, 3 + place] for place in range(sequences)]
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), use_tqdm=False)
        told = {share.name: (share.messages, share.nbytes) for share in cost.shares if share.name != WEIGHTS}
        for step in counted.taken()[STEADY]:
            assert step == told
    executor.close()
    assert commands.HEADER.size == COMMAND_BYTES


def test_explained_weights_are_those_that_ranks_hold(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "llama")
    found = resolve(
        {"model": str(path), "tensor_parallel_size": 2, "data_parallel_size": 2, "max_num_seqs": 1}, context="explain"
    )
    assert found.layout is not None
    (cost,) = found.layout.steps.values()
    read = next(share for share in cost.shares if share.name == WEIGHTS)
    assert found.memory.weights / 2 <= read.nbytes < found.memory.weights
    assert any("nothing is sent between the 2 engines" in note for note in found.layout.notes)
    assert resolve({"model": str(path)}, context="explain").layout is None
