"""What answers carry besides tokens is the same through preemptions, sleep, deaths, several ranks, grammars and HTTP."""

import base64
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch

from core import LLM, SamplingParams, StructuredOutputsParams
from core.api.errors import ConfigError
from core.api.sampling_params import RequestOutputKind
from core_frontend.group.inproc import OfflineGroup
from tests.apis.test_real_server import client_of, serving
from tests.executor.test_doubles import TORCH, double
from tests.ranks.test_experts import MOE
from tests.ranks.test_ranks import ranks_of
from tests.tiny_models import save_checkpoint, save_model

TOLD: dict[str, Any] = {"return_sampling_mask": True, "enable_return_routed_experts": True}
SETTINGS: dict[str, Any] = {
    **TOLD,
    "max_model_len": 96,
    "max_num_batched_tokens": 32,
    "max_num_seqs": 4,
    "num_gpu_blocks_override": 24,
    "enable_prefix_caching": False,
}
PROMPTS = [[(5 * step + first) % 250 + 4 for step in range(30)] for first in (1, 2, 3, 4)]
PARAMS = SamplingParams(temperature=0.8, top_k=9, seed=5, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("qwen3_moe"), family="qwen3_moe")


@pytest.fixture(scope="module")
def expected(mixture: Path) -> list[Any]:
    with LLM(str(mixture), **SETTINGS) as engine:
        return answers(engine)


def answers(engine: LLM, params: SamplingParams = PARAMS) -> list[Any]:
    prompts: list[Any] = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    return [facts(output.outputs[0]) for output in engine.generate(prompts, params, use_tqdm=False)]


def facts(answer: Any) -> tuple[list[int], list[list[int]], list[Any]]:
    return list(answer.token_ids), answer.sampling_mask.token_ids, answer.routed_experts.tolist()


def test_a_preempted_answer_has_all_of_its_own(mixture: Path, expected: list[Any]) -> None:
    with LLM(str(mixture), **{**SETTINGS, "num_gpu_blocks_override": 11}) as engine:
        assert answers(engine) == expected
        stats = engine.stats()
    assert stats.num_preemptions > 0
    unknown = [-1, -1, -1]
    assert not any(first == unknown or last == unknown for _, _, rows in expected for first, _, last in rows)


def test_it_is_told_after_sleep(mixture: Path, expected: list[Any]) -> None:
    with LLM(str(mixture), **SETTINGS, enable_sleep_mode=True) as engine:
        for level in (1, 2):
            assert answers(engine) == expected
            engine.sleep(level)
            engine.wake_up()
        assert answers(engine) == expected


def test_a_mask_knows_the_grammar(mixture: Path) -> None:
    digits = StructuredOutputsParams(regex="[0-9]{6}")
    params = SamplingParams(temperature=1.0, top_k=20, seed=1, max_tokens=6, structured_outputs=digits)
    with LLM(str(mixture), **SETTINGS) as engine:
        for token_ids, masks, _ in answers(engine, params):
            assert len(token_ids) == 6
            assert [len(ids) for ids in masks] == [10] * 6
            assert all(token in ids for token, ids in zip(token_ids, masks, strict=True))


def test_a_death_loses_nothing(mixture: Path, expected: list[Any]) -> None:
    with LLM(str(mixture), **SETTINGS, data_parallel_size=2) as engine:
        for number, prompt in enumerate(PROMPTS):
            engine.add_request(str(number), {"prompt_token_ids": prompt}, PARAMS)
        last: dict[str, Any] = {}
        while not last:
            last |= {output.request_id: output for output in engine.step()}
        client = engine._client
        assert isinstance(client, OfflineGroup)
        victim = next(member for member in client._group.members if client._group._work.at(member.index))
        os.kill(victim.client.pid, signal.SIGKILL)
        while engine.has_unfinished_requests():
            last |= {output.request_id: output for output in engine.step()}
    assert [facts(last[str(number)].outputs[0]) for number in range(len(PROMPTS))] == expected


@pytest.mark.parametrize("more", [{}, {"enable_expert_parallel": True}])
def test_ranks_tell_the_same(tmp_path: Path, more: dict[str, Any]) -> None:
    torch.manual_seed(3)
    model = str(save_model(tmp_path / "eight", MOE))
    with LLM(model, **SETTINGS) as one:
        expected = answers(one)
    engine = LLM(model, **SETTINGS, **more, tensor_parallel_size=2)
    try:
        assert answers(engine) == expected
    finally:
        ranks_of(engine).close()


def test_a_device_that_copies_late_tells_the_same(mixture: Path) -> None:
    settings = {**SETTINGS, "dtype": "float32"}
    late: dict[str, Any] = double("late")
    params = SamplingParams(temperature=0.8, top_k=9, seed=5, max_tokens=6, ignore_eos=True)
    with LLM(str(mixture), **{**settings, **TORCH}) as engine:
        expected = answers(engine, params)
    with LLM(str(mixture), **settings, **late) as engine:
        assert answers(engine, params) == expected


def test_stages_do_not_tell_experts(mixture: Path) -> None:
    with pytest.raises(ConfigError, match=r"--enable-return-routed-experts: each stage.*--pipeline-parallel-size"):
        LLM(str(mixture), **SETTINGS, pipeline_parallel_size=2)


@pytest.fixture(scope="module")
def client(mixture: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    flags = ["--return-sampling-mask", "--enable-return-routed-experts", "--max-model-len", "96", "--seed", "0"]
    more = ["--no-enable-prefix-caching", "--num-gpu-blocks-override", "24", "--served-model-name", "tiny"]
    with serving(tmp_path_factory.mktemp("server") / "log", str(mixture), *flags, *more) as running:
        yield client_of(running)


def decoded(text: str) -> Any:
    return np.load(io.BytesIO(base64.b64decode(text))).tolist()


def test_the_official_client_gets_them(client: openai.OpenAI, expected: list[Any]) -> None:
    token_ids, masks, experts = expected[0]
    extra = {"top_k": 9, "ignore_eos": True, "return_token_ids": True}
    asked: dict[str, Any] = {"model": "tiny", "temperature": 0.8, "seed": 5, "max_tokens": 24, "extra_body": extra}
    (whole,) = client.completions.create(prompt=PROMPTS[0], **asked).choices
    assert whole.model_extra is not None
    assert whole.model_extra["token_ids"] == token_ids
    assert whole.model_extra["sampling_mask"] == masks
    assert decoded(whole.model_extra["routed_experts"]) == experts
    pieces = [
        chunk.choices[0].model_extra or {}
        for chunk in client.completions.create(prompt=PROMPTS[0], stream=True, **asked)
    ]
    assert [ids for piece in pieces for ids in piece.get("sampling_mask", [])] == masks
    assert [decoded(piece["routed_experts"]) for piece in pieces if "routed_experts" in piece] == [experts]
    messages: Any = [{"role": "user", "content": "Hi"}]
    (chat,) = client.chat.completions.create(messages=messages, **asked).choices
    assert chat.model_extra is not None
    assert len(chat.model_extra["sampling_mask"]) == len(chat.model_extra["token_ids"]) == 24
    assert np.shape(decoded(chat.model_extra["routed_experts"]))[1:] == (3, 3)
    sampling = {"temperature": 0.8, "seed": 5, "max_tokens": 24, "top_k": 9, "ignore_eos": True}
    body = {"token_ids": PROMPTS[0], "sampling_params": sampling}
    answer = client.post("/../inference/v1/generate", body=body, cast_to=object)
    assert isinstance(answer, dict)
    (choice,) = answer["choices"]
    assert (choice["sampling_mask"], decoded(choice["routed_experts"])) == (masks, experts)


def test_deltas_add_up(mixture: Path, expected: list[Any]) -> None:
    params = PARAMS.clone()
    params.output_kind = RequestOutputKind.DELTA
    with LLM(str(mixture), **SETTINGS) as engine:
        engine.add_request("one", {"prompt_token_ids": PROMPTS[0]}, params)
        masks: list[list[int]] = []
        experts: list[Any] = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                (piece,) = output.outputs
                masks += piece.sampling_mask.token_ids if piece.sampling_mask else []
                experts += [] if piece.routed_experts is None else [piece.routed_experts.tolist()]
    assert (masks, experts) == (expected[0][1], [expected[0][2]])
