"""Weights in host memory, on a device that works late: the bits of weights on the device, and copies in the right order."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM
from core.api.errors import CoreError, PluginError, UserError
from core.commands.main import main
from core_config.resolve import resolve
from core_kit.devices.fake_device import FakeCalls
from core_runtime.executor.reloading.arena import Arena
from core_runtime.models.decoder import Decoder
from core_runtime.models.tensors.host_weights import HostWeights
from core_runtime.specs.weight_offload import OffloadConfig
from tests.executor.test_doubles import TORCH, double, expected_of, results, settings
from tests.executor.test_gpu_steps import NGRAM, ROOM, calls_of, tokens, watched
from tests.inside import worker_of
from tests.new_weights import mixed, weights_of
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
def test_sleep_and_new_weights_reach_host_memory(
    tiny_llama: Path, newer_llama: Path, tmp_path: Path, how: dict[str, Any]
) -> None:
    names = [name for name in weights_of(tiny_llama) if ".layers.1.mlp" in name]
    before, after, both = (
        plain(tiny_llama),
        plain(newer_llama),
        mixed(tmp_path / "both", newer_llama, tiny_llama, names),
    )
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
        llm.update_weights({"update_info": {"path": str(tiny_llama), "names": names}})
        assert tokens(llm) == plain(both) != after
        assert host_of(llm).slot_nbytes == slots


def test_new_weights_that_cannot_be_used_change_nothing(
    tiny_llama: Path, newer_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(weights: HostWeights) -> None:
        raise UserError("no place for them")

    with LLM(model=str(tiny_llama), **ROOM, **double("gpu"), offload_group_size=1) as llm:
        before = tokens(llm)
        held = host_of(llm)
        monkeypatch.setattr(HostWeights, "finish", refuse)
        with pytest.raises(CoreError, match="no place for them"):
            llm.update_weights(path=str(newer_llama))
        assert tokens(llm) == before and host_of(llm) is held


def test_drafts_keep_their_bits(tiny_llama: Path) -> None:
    with LLM(model=str(tiny_llama), **ROOM, **TORCH, speculative_config=NGRAM) as llm:
        expected = tokens(llm)
    with LLM(model=str(tiny_llama), **ROOM, **double("gpu"), offload_group_size=1, speculative_config=NGRAM) as llm:
        assert tokens(llm) == expected


@pytest.mark.parametrize("how", [{"offload_group_size": 1}, {"cpu_offload_gb": 1.0, "cpu_offload_params": ["experts"]}])
def test_experts_lie_in_host_memory(tmp_path: Path, how: dict[str, Any]) -> None:
    """Blocks of different sizes share slots: the second one has no experts."""
    path = save_checkpoint(tmp_path / "moe", "qwen3_moe")
    with LLM(model=str(path), **ROOM, **double("gpu"), **how) as llm:
        assert tokens(llm) == plain(path)
        assert host_of(llm).nbytes > 0


def test_latent_attention_has_its_matrix_by_heads_in_the_plan(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "latent", "deepseek_v3")
    given = {"model": str(path), **ROOM, **double("gpu"), "attention_backend": "torch_sdpa"}
    whole, without = (
        resolve({**given, "offload_group_size": 1, "offload_params": names}, context="llm", environ={}).memory
        for names in ([], ["kv_b_proj"])
    )
    assert 0 < without.offloaded < whole.offloaded < whole.weights


def test_a_kernel_that_keeps_its_weight_is_named() -> None:
    runtime: Any = None
    weights = HostWeights(OffloadConfig(roles={}), {"a": 0}, runtime, Arena(torch.zeros, lambda n: None), torch.zeros)
    with pytest.raises(PluginError, match="a: object keeps its weight on the device"):
        weights.put("a", object())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"offload_group_size": 2, "offload_params": ["nothing"]},
            "--offload-params nothing: no matrix of a block has",
        ),
        ({"cpu_offload_gb": 1.0, "offload_group_size": 2}, "leave one of them out"),
    ],
)
def test_what_cannot_be_is_refused_before_weights_are_read(
    tiny_llama: Path, given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(CoreError, match=sentence):
        LLM(model=str(tiny_llama), **ROOM, **double("gpu"), **given)


def test_the_plan_counts_slots_and_host_memory(tiny_llama: Path) -> None:
    """Its bytes are those that the engine then has, where kernels hold weights without padding."""
    given = {**ROOM, **double("gpu"), "offload_group_size": 2, "offload_prefetch_step": 2}
    plan = resolve({"model": str(tiny_llama), **given}, context="llm", environ={}).memory
    with LLM(model=str(tiny_llama), **given) as llm:
        assert (plan.offloaded, plan.slots) == (host_of(llm).nbytes, host_of(llm).slot_nbytes)
        blocks = llm_blocks(llm)
    assert plan.offload is not None and len(plan.offload.roles) == blocks // 2
    assert plan.slots == plan.offloaded, "fewer blocks than slots have one each"


def test_explain_tells_of_host_memory_and_slots(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--plugins",
        str(double("gpu")["plugins"]),
        "--device",
        "double",
        "--attention-backend",
        "double_attention",
    ]
    words += ["--numerics", "reference", "--platform-config.kind", "gpu", "--dtype", "float32"]
    explain = ["config", "explain", str(tiny_llama), *words, "--offload-group-size", "1"]
    assert main(explain) == 0
    shown = capsys.readouterr().out
    assert "in the host's memory, of 3 blocks, copied to the device ahead of each" in shown
    assert "on the device: 2 that these blocks share" in shown
    assert main([*explain, "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert 0 < memory["slot_bytes"] < memory["offloaded_bytes"] < memory["weights_bytes"]


def test_more_than_host_memory_is_refused_with_both_numbers(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core_config.stages.platform.host_memory", lambda: 1000)
    with pytest.raises(CoreError, match=r"KiB of weights belong into host memory, and this machine has 1000 B"):
        LLM(model=str(tiny_llama), **ROOM, **double("gpu"), offload_group_size=1)
