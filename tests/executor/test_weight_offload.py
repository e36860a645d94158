"""Weights in host memory, on a device that works late: the bits of weights on the device, and copies in the right order."""

from pathlib import Path
from typing import Any

import pytest

from core import LLM
from core.api.errors import CoreError
from core_kit.devices.fake_device import FakeCalls
from core_runtime.models.decoder import Decoder
from core_runtime.models.tensors.host_weights import HostWeights
from tests.executor.test_doubles import TORCH, double, expected_of, results, settings
from tests.executor.test_gpu_steps import NGRAM, ROOM, calls_of, tokens, watched
from tests.inside import worker_of
from tests.new_weights import weights_of
from tests.tiny_models import save_checkpoint

AHEAD = {"offload_group_size": 2, "offload_num_in_group": 1}
VARIANTS: dict[str, dict[str, Any]] = {
    "half of the blocks": AHEAD,
    "all, two copied ahead": {"offload_group_size": 1, "offload_prefetch_step": 2},
    "copied when needed": {"offload_group_size": 1, "offload_prefetch_step": 0},
    "some matrices": {"offload_group_size": 1, "offload_params": ["down_proj", "qkv_proj"]},
    "never recorded": {**AHEAD, "offload_group_size": 1, "enforce_eager": True},
    "in place": {"cpu_offload_gb": 1.0},
    "a part in place": {"cpu_offload_gb": 1e-4, "cpu_offload_params": ["mlp"]},
}


def host_of(llm: LLM) -> HostWeights:
    """The weights of the target in host memory."""
    store = worker_of(llm).instances[0].store
    assert store is not None and store.host is not None
    return store.host


@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_bits_are_those_of_weights_on_the_device(tiny_llama: Path, variant: str, early: bool) -> None:
    with LLM(**(settings(tiny_llama) | double("gpu") | VARIANTS[variant])) as llm:
        calls: FakeCalls = calls_of(llm)
        calls.fetches_early = early
        with watched(llm):
            assert results(llm) == expected_of(tiny_llama)
        assert host_of(llm).nbytes > 0
        if "place" in variant:
            assert calls.fetches == 0 and host_of(llm).slot_nbytes == 0
        else:
            assert calls.fetches > 50
        assert (calls.recorded == 0) == (variant == "never recorded")


def test_a_slot_is_never_overwritten_before_its_block_ran(tiny_llama: Path) -> None:
    """Each product reads its own weights: the last copy into its place came from its place in host memory."""
    with LLM(**(settings(tiny_llama) | double("gpu") | {"offload_group_size": 1})) as llm:
        calls = calls_of(llm)
        calls.fetches_early = True
        calls.trace = []
        with watched(llm):
            results(llm)
        parts = host_of(llm)._parts.values()
        own = {id(kernel._inner): part.memory.data_ptr() for part in parts for kernel, _ in part.kernels}
        blocks = llm_blocks(llm)
        last: dict[int, int] = {}
        checked: set[int] = set()
        for name, what in calls.trace:
            if name == "fetch":
                target, source = what
                last[target.data_ptr()] = source.data_ptr()
            elif id(what) in own:
                assert last[what.weights()[0].data_ptr()] == own[id(what)]
                checked.add(id(what))
        assert checked == set(own) and len(own) == 4 * blocks
        assert len(set(last)) == 4 * 2 < 4 * blocks, "blocks share two slots"


def llm_blocks(llm: LLM) -> int:
    """The number of blocks of the target."""
    model = worker_of(llm).instances[0].model
    assert isinstance(model, Decoder)
    return len(model.weights.blocks)


@pytest.fixture(scope="module")
def newer_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("newer_llama"), seed=11)


def plain(path: Path) -> list[Any]:
    with LLM(model=str(path), **ROOM, **TORCH) as llm:
        return tokens(llm)


@pytest.mark.parametrize("how", [{"offload_group_size": 1}, {"cpu_offload_gb": 1.0}], ids=["prefetch", "uva"])
def test_sleep_and_new_weights_reach_host_memory(tiny_llama: Path, newer_llama: Path, how: dict[str, Any]) -> None:
    before, after = plain(tiny_llama), plain(newer_llama)
    assert before != after
    with LLM(model=str(tiny_llama), **ROOM, **double("gpu"), **how, enable_sleep_mode=True) as llm:
        assert tokens(llm) == before
        held = host_of(llm)
        llm.sleep(2)
        llm.wake_up()
        assert host_of(llm) is not held and host_of(llm).nbytes == held.nbytes
        assert tokens(llm) == before
        llm.update_weights(path=str(newer_llama))
        assert tokens(llm) == after
        slots = host_of(llm).slot_nbytes
        newer = {name: tensor for name, tensor in weights_of(tiny_llama).items() if ".layers.1." in name}
        llm.update_weights(tensors=newer)
        mixed = tokens(llm)
        assert mixed not in (before, after)
        llm.update_weights(tensors=weights_of(newer_llama))
        assert tokens(llm) == after
        assert host_of(llm).slot_nbytes == slots


def test_an_update_that_does_not_fit_changes_nothing(tiny_llama: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    wrong = {name: weights_of(tiny_llama)[name][:, :-1].clone()}
    with LLM(model=str(tiny_llama), **ROOM, **double("gpu"), offload_group_size=1) as llm:
        before = tokens(llm)
        with pytest.raises(CoreError, match="down_proj"):
            llm.update_weights(tensors=wrong)
        assert tokens(llm) == before


def test_drafts_and_preemptions_keep_their_bits(tiny_llama: Path) -> None:
    with LLM(model=str(tiny_llama), **ROOM, **TORCH, speculative_config=NGRAM) as llm:
        expected = tokens(llm)
    with LLM(model=str(tiny_llama), **ROOM, **double("gpu"), offload_group_size=1, speculative_config=NGRAM) as llm:
        assert tokens(llm) == expected
