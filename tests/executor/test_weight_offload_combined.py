"""Weights in host memory beside what else changes weights: rounding, experts, tied heads, drafts with weights of their own,
sleep and updates. Each engine has the tokens of one whose weights lie on the device.

`make test-matrix` has them beside adapters, grammars, preemptions, chunks and deaths.
"""

from pathlib import Path
from typing import Any

import pytest

from core import LLM
from tests.executor.test_doubles import double
from tests.executor.test_gpu_steps import ROOM, tokens
from tests.executor.test_weight_offload import host_of
from tests.tiny_models import save_checkpoint

AHEAD = {"offload_group_size": 1}
IN_PLACE = {"cpu_offload_gb": 1.0}
FAMILIES = {"tied": "gemma3", "experts": "qwen3_moe", "plain": "llama"}
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("mxfp4 and a draft model", "plain", {"quantization": "mxfp4", "speculative_config": "itself"}, AHEAD),
    ("int8 in place", "plain", {"quantization": "int8"}, IN_PLACE),
    ("fp8", "plain", {"quantization": "fp8"}, AHEAD),
    ("tied in place", "tied", {}, IN_PLACE),
    ("tied and int8", "tied", {"quantization": "int8"}, AHEAD),
    ("experts", "experts", {}, AHEAD),
    ("rounded experts in place", "experts", {"quantization": "experts_int8"}, IN_PLACE),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "given", "how"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_tokens_are_those_of_weights_on_the_device(
    tmp_path: Path, family: str, given: dict[str, Any], how: dict[str, Any]
) -> None:
    old, new = (
        save_checkpoint(tmp_path / name, FAMILIES[family], seed=seed) for name, seed in (("old", 3), ("new", 4))
    )
    if given.get("speculative_config") == "itself":
        draft = {"method": "draft_model", "model": str(old), "num_speculative_tokens": 2, "adaptive": False}
        given = given | {"speculative_config": draft}
    same = {**ROOM, **double("gpu"), **given}
    expected = []
    for path in (old, new):
        with LLM(model=str(path), **same) as llm:
            expected.append(tokens(llm))
    assert expected[0] != expected[1]
    with LLM(model=str(old), **same, **how, enable_sleep_mode=True) as llm:
        assert tokens(llm) == expected[0]
        held = host_of(llm).nbytes
        assert held > 0
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            assert tokens(llm) == expected[0] and host_of(llm).nbytes == held
        llm.update_weights(path=str(new))
        assert tokens(llm) == expected[1] and host_of(llm).nbytes == held
        llm.sleep(1)
        llm.wake_up()
        assert tokens(llm) == expected[1]
