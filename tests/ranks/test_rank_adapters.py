"""Adapters of several ranks: the answers of one rank, loads and failures, sleep, drafts, and a death."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from core import SamplingParams, SharedTensors
from core.api.adapters import AdapterSource
from core.api.errors import RequestError
from core.commands.main import main
from core_config.adapter_cost import adapter_sums
from core_config.resolve import resolve
from core_config.stages.memory import human_bytes
from core_distributed.executor import RanksExecutor
from core_frontend.async_engine import AsyncEngine
from core_frontend.library.lora_request import LoRARequest
from core_frontend.request_terms import RequestTerms
from core_platforms.cpu.ranks import SharedCommunicator
from core_runtime.executor.ranks import Ranks
from core_runtime.specs.model_part import Part
from tests.adapters.drawn import shapes_of, write_adapter
from tests.adapters.engines import AdapterEngine, bits_of, engine
from tests.adapters.made import ALL, save_adapter
from tests.inside import core_of, digest_of
from tests.ranks.test_ranks import ranks_below
from tests.tiny_models import save_checkpoint

PROMPTS = [[1, *range(40, 75)], [1, 9, 99, 100, 9, 99, 100, 9, 99]]
ASKED = SamplingParams(temperature=0.8, seed=3, max_tokens=16, ignore_eos=True, logprobs=3)
SETTINGS = {"max_num_batched_tokens": 32, "kv_cache_memory_bytes": "8M", "use_tqdm_on_load": False}
LIMITS = {"max_loras": 8, "max_cpu_loras": 8}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lengths": {"r": 20, "use_dora": True, "modules_to_save": ["input_layernorm", "norm"]},
    "biased": {"r": 3, "lora_bias": True, "use_rslora": True},
    "around": {"r": 6, "target_modules": ["o_proj", "embed_tokens", "lm_head"]},
    "saved": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "tokens": {"target_modules": ["v_proj", "down_proj"], "trainable_token_indices": [5, 9, 99, 200]},
}
"""What peft saves, by the options that make it."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("ranks") / "llama")


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        kind: save_adapter(base, folder / kind, seed=number, **options)
        for number, (kind, options) in enumerate(KINDS.items())
    }


def answers(made: AdapterEngine, adapters: dict[str, Path]) -> list[Any]:
    wanted = [(prompt, adapter) for prompt in PROMPTS for adapter in (*adapters.values(), None)]
    return [bits_of(output) for output in made.run(wanted, ASKED)]


@pytest.fixture(scope="module")
def expected(base: Path, adapters: dict[str, Path]) -> list[Any]:
    with engine(base, LIMITS, **SETTINGS) as one:
        one.load(*adapters.values())
        return answers(one, adapters)


@pytest.fixture(scope="module")
def two(base: Path, adapters: dict[str, Path]) -> Iterator[AdapterEngine]:
    with engine(base, LIMITS, tensor_parallel_size=2, enable_sleep_mode=True, **SETTINGS) as made:
        made.load(*adapters.values())
        yield made


def ranks_of(made: AdapterEngine) -> RanksExecutor:
    found = core_of(made.llm).executor
    assert isinstance(found, RanksExecutor)
    return found


def test_two_ranks_answer_as_one(two: AdapterEngine, adapters: dict[str, Path], expected: list[Any]) -> None:
    assert answers(two, adapters) == expected
    count = len(adapters) + 1
    for start in range(0, len(expected), count):
        *changed, plain = expected[start : start + count]
        assert plain not in changed, "each adapter changes answers"


def test_steps_with_usual_adapters_are_recorded(two: AdapterEngine, adapters: dict[str, Path]) -> None:
    recorder = ranks_of(two).worker.runner.forward.recorder
    before = dict(recorder.unrecorded)
    two.run([(PROMPTS[0], adapters["plain"]), (PROMPTS[1], None)], ASKED)
    assert recorder.has("decode with adapters", 2) and dict(recorder.unrecorded) == before


@pytest.mark.parametrize("level", [1, 2])
def test_adapters_are_there_after_sleep(
    two: AdapterEngine, adapters: dict[str, Path], expected: list[Any], level: int
) -> None:
    two.llm.sleep(level)
    assert not ranks_of(two).worker.placed().rows
    two.llm.wake_up()
    assert answers(two, adapters) == expected


def test_adapters_come_go_and_are_replaced(base: Path, two: AdapterEngine, tmp_path: Path) -> None:
    """With one place the first adapter makes room for the second, and comes back; its name may stand for other weights."""
    paths = [save_adapter(base, tmp_path / str(seed), seed=20 + seed) for seed in range(3)]
    with (
        engine(base, LIMITS, **SETTINGS) as one,
        engine(base, {"max_loras": 1, "max_cpu_loras": 1}, tensor_parallel_size=2, **SETTINGS) as made,
    ):
        one.load(*paths)
        made.load(*paths[:2])
        for path in (*paths[:2], paths[0]):
            assert answers(made, {"": path}) == answers(one, {"": path})
        request = LoRARequest(str(paths[0]), lora_path=str(paths[2]), load_inplace=True)
        made.digests[paths[2]] = digest_of(made.llm, request)
        assert answers(made, {"": paths[2]}) == answers(one, {"": paths[2]})
        made.drop(paths[1])
        with pytest.raises(RequestError, match="no adapter"):
            made.drop(paths[1])


def test_a_rank_that_cannot_read_ends_the_load_alone(
    two: AdapterEngine, base: Path, adapters: dict[str, Path], expected: list[Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The others drop what they have read, and the same adapter can be loaded once it can be read."""
    path = save_adapter(base, tmp_path / "late", seed=31)
    ranks = ranks_of(two)
    read = ranks._own_adapters.read

    def gone_afterwards(source: AdapterSource) -> Any:
        facts = read(source)
        shutil.move(path, tmp_path / "elsewhere")
        return facts

    with monkeypatch.context() as patched:
        patched.setattr(ranks._own_adapters, "read", gone_afterwards)
        with pytest.raises(RequestError, match=r"rank 1: .*late"):
            two.load(path)
    assert len(ranks.worker.placed().rows) == len(adapters)
    assert answers(two, adapters) == expected
    shutil.move(tmp_path / "elsewhere", path)
    two.load(path)
    assert len(ranks.worker.placed().rows) == len(adapters) + 1
    two.drop(path)


def test_what_cannot_be_used_is_one_sentence(two: AdapterEngine, base: Path, tmp_path: Path) -> None:
    wide = save_adapter(base, tmp_path / "wide", r=65, target_modules=["q_proj"])
    with pytest.raises(RequestError, match=r"the rank of .* is 65; --max-lora-rank allows 64"):
        two.load(wide)
    with (
        SharedTensors({"a": torch.ones(2)}) as shared,
        pytest.raises(RequestError, match="shared memory, which several ranks cannot"),
    ):
        two.llm.add_lora(shared.adapter("sent", {"peft_type": "LORA", "r": 1, "target_modules": ["q_proj"]}, 7))


LAYOUTS: dict[str, dict[str, Any]] = {
    "four ranks": {"tensor_parallel_size": 4},
    "two stages": {"pipeline_parallel_size": 2},
    "three stages with drafts": {"pipeline_parallel_size": 3, "drafts": True},
    "stages of two ranks": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    "drafts": {"tensor_parallel_size": 2, "drafts": True},
    "drafts of suffixes": {"tensor_parallel_size": 2, "speculative_config": {"method": "suffix", "num_speculative_tokens": 3}},
    "gloo": {"tensor_parallel_size": 2, "disable_custom_all_reduce": True},
    "divided keys": {"tensor_parallel_size": 4, "decode_context_parallel_size": 2, "max_model_len": 256},
    "planned ahead": {"tensor_parallel_size": 2, "async_scheduling": True},
    "never recorded, preempted": {"tensor_parallel_size": 2, "enforce_eager": True, "num_gpu_blocks_override": 14},
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_answers_as_one_rank(
    base: Path, adapters: dict[str, Path], expected: list[Any], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Ranks, "fewest_together", lambda ranks, spec: 2
    )  # two sequences are enough for a step of its own
    settings = {**SETTINGS, **LAYOUTS[layout]}
    if settings.pop("drafts", False):
        settings["speculative_config"] = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}
    with engine(base, LIMITS, **settings) as made:
        made.load(*adapters.values())
        assert answers(made, adapters) == expected


@pytest.mark.parametrize("family", ["gemma3", "deepseek_v3", "mixtral", "lfm2"])
def test_other_families(family: str, tmp_path: Path) -> None:
    """Windows, a latent, experts (whose attention and routers may change), and states."""
    base = save_checkpoint(tmp_path / "base", family)
    names = ["q_proj", "kv_b_proj", "kv_a_proj_with_mqa", "o_proj", "down_proj", "gate", "in_proj", "out_proj", "w2"]
    shapes = {module: shape for module, shape in shapes_of(str(base), names).items() if ".experts." not in module}
    path = write_adapter(tmp_path / "adapter", shapes, 6, seed=4, scale=0.2)
    found = []
    for ranks in (1, 2):
        with engine(base, LIMITS, tensor_parallel_size=ranks, **SETTINGS) as made:
            made.load(path)
            found.append(answers(made, {"": path}))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_experts_change_on_the_ranks_that_have_them(tmp_path: Path) -> None:
    base = save_checkpoint(tmp_path / "base", "mixtral")
    options = {"target_parameters": ["experts.gate_up_proj", "experts.down_proj"], "target_modules": ["q_proj"]}
    path = save_adapter(base, tmp_path / "adapter", seed=4, **options)
    found = []
    for ranks in (1, 2):
        with engine(base, LIMITS, tensor_parallel_size=ranks, **SETTINGS) as made:
            made.load(path)
            found.append(answers(made, {"": path}))
    assert found[0] == found[1] and found[0][0] != found[0][1]
    with engine(
        base, LIMITS, tensor_parallel_size=2, enable_expert_parallel=True, enable_eplb=True, **SETTINGS
    ) as made:
        with pytest.raises(RequestError, match="a matrix of an expert, and --enable-eplb moves"):
            made.load(path)
        made.run([(PROMPTS[0], None)], ASKED)


def test_ranks_take_what_is_planned(tmp_path: Path, capsys: Any) -> None:
    base = save_checkpoint(tmp_path / "base", hidden_size=512, intermediate_size=1024, num_hidden_layers=2)
    words = [
        "config",
        "explain",
        str(base),
        "--enable-lora",
        "--max-lora-rank",
        "48",
        "--tensor-parallel-size",
        "2",
        "--dtype",
        "float32",
        "--json",
    ]
    capsys.readouterr()
    assert main(words) == 0
    planned = json.loads(capsys.readouterr().out)["memory"]["adapter_bytes"]
    path = write_adapter(tmp_path / "adapter", shapes_of(str(base), ALL), 48, seed=4)
    with engine(base, {"max_lora_rank": 48}, tensor_parallel_size=2, **SETTINGS) as made:
        made.load(path)
        placed = ranks_of(made).worker.placed()
        (digest,) = placed.rows
        found = placed.find(digest)
        assert found is not None
        assert 2 * found.facts.nbytes == pytest.approx(planned, rel=0.01)


def test_ranks_send_what_is_explained(base: Path, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "model": str(base),
        "tensor_parallel_size": 2,
        "enable_lora": True,
        "max_lora_rank": 32,
        "enforce_eager": True,
    }
    sums: list[int] = []
    real = SharedCommunicator.all_reduce

    def counted(ranks: SharedCommunicator, x: torch.Tensor) -> None:
        sums.append(x.nbytes)
        real(ranks, x)

    monkeypatch.setattr(SharedCommunicator, "all_reduce", counted)
    with engine(base, {"max_lora_rank": 32}, enforce_eager=True, tensor_parallel_size=2, **SETTINGS) as made:
        made.load(adapters["plain"])
        seen = []
        for adapter in (None, adapters["plain"]):
            sums.clear()
            made.run([(PROMPTS[1], adapter)], SamplingParams(temperature=0, max_tokens=1))
            seen.append((len(sums), sum(sums)))
        spec = ranks_of(made).worker.whole
    more = seen[1][0] - seen[0][0], seen[1][1] - seen[0][1]
    count, nbytes = adapter_sums(spec, spec.local(Part(0, 2)), 32)
    assert more == (count, nbytes * len(PROMPTS[1]))
    layout = resolve(given, context="explain").layout
    assert layout is not None
    assert f"adapters: steps with some add {count} sums, of {human_bytes(nbytes)} a token together" in layout.notes


async def test_the_next_engine_has_adapters_before_streams_go_on(
    base: Path, adapters: dict[str, Path], expected: list[Any]
) -> None:
    given = {"model": str(base), "tensor_parallel_size": 2, "enable_lora": True, "max_loras": 2, "dtype": "float32",
             "max_model_len": 128, "lora_modules": [f"plain={adapters['plain']}"], "logprobs_mode": "raw_logits",
             "enable_prefix_caching": False, "max_lora_rank": 64, **SETTINGS}  # fmt: skip
    running = await AsyncEngine.start(resolve(given, context="serve", environ={}))
    killed: list[int] = []
    try:
        await running.adapters.load("later", str(adapters["lengths"]))
        for index, name in enumerate(("plain", "later")):
            found = await running.adapters.find(name)
            assert found is not None
            terms = RequestTerms(adapter=found.facts)
            tokens: list[int] = []
            async for output in running.generate({"prompt_token_ids": PROMPTS[0]}, ASKED, name, terms):
                tokens = list(output.outputs[0].token_ids)
                if len(killed) == index:
                    killed += ranks_below(running._client.pid)
                    os.kill(killed[-1], signal.SIGKILL)
            assert tokens == expected[index][0]
        assert len(set(killed)) == 2
    finally:
        await running.close()
