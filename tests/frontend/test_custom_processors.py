"""Logits processors and modes of log-probabilities in a whole engine, beside transformers' own numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from executor.own_processors import Counts, Shifts, Target
from transformers import AutoModelForCausalLM

from core import LLM, AsyncLLM, SamplingParams
from core.api.errors import ConfigError, RequestError, UserError
from core_kit.skeleton import TEMPLATES
from tests.kit.cheats import plugin

PROCESSOR = (TEMPLATES / "logits_processor/core_my_plugin/processor.py").read_text()
PATH = "executor.own_processors"
SETTINGS: dict[str, Any] = {
    "max_model_len": 128,
    "kv_cache_memory_bytes": 8 << 20,
    "use_tqdm_on_load": False,
    "max_num_seqs": 8,
    "dtype": "float32",
    "max_logprobs": -1,
}
PROMPTS = ["abcabcabcabcabc", "the quick brown fox", "z"]


def params(extra: dict[str, Any] | None = None, **more: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, "extra_args": extra, **more})


def tokens(outputs: list[Any]) -> list[list[int]]:
    return [list(choice.token_ids) for output in outputs for choice in output.outputs]


@pytest.fixture(scope="module")
def llm(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """With a plugin, and classes of all sorts."""
    folder = tmp_path_factory.mktemp("plugin")
    source = plugin(folder, "logits_processor", PROCESSOR) + "\ndef build(module): return module.Processor()\n"
    (folder / "cheat.py").write_text(source)
    named = [Shifts, f"{PATH}:Late", "cheat", f"{PATH}.Target", Counts]
    with LLM(str(tiny_llama), logits_processors=named, plugins=str(folder / "cheat.py"), **SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(tiny_llama: Path) -> Iterator[LLM]:
    """Without any."""
    with LLM(str(tiny_llama), **SETTINGS) as engine:
        yield engine


def test_who_asks_gets_it_and_others_get_what_they_always_got(llm: LLM, plain: LLM) -> None:
    asked = [params({"target_token": 77}), params(), params({"start": 40}, max_tokens=5)]
    found = tokens(llm.generate(PROMPTS, asked, use_tqdm=False))
    assert found[0] == [77] * 12
    assert found[2] == [40, 41, 42, 43, 44]
    assert tokens(plain.generate(PROMPTS, params(), use_tqdm=False))[1] == found[1]
    alone = tokens(llm.generate(PROMPTS[1], params({"shift": 4.0}, temperature=0.9, seed=3), use_tqdm=False))
    crowd = [params({"shift": 4.0}, temperature=0.9, seed=3), params({"shift": -9.0}, n=3), params()]
    prompts = [PROMPTS[1], PROMPTS[0], PROMPTS[2]]
    assert tokens(llm.generate(prompts, crowd, use_tqdm=False))[0] == alone[0]


def test_a_plugin_is_named_and_asked(llm: LLM) -> None:
    asked = [params({"parity": "odd"}), params({"parity": "even"}, temperature=1.0), params()]
    odd, even, free = tokens(llm.generate(PROMPTS, asked, use_tqdm=False))
    assert {token % 2 for token in odd} == {1} and {token % 2 for token in even} == {0}
    assert free == tokens(llm.generate(PROMPTS[2], params(), use_tqdm=False))[0]
    with pytest.raises(RequestError, match=r"plugin 'cheat' .*parity is 'both'; expected even or odd"):
        llm.generate("a", params({"parity": "both"}))


def test_failures_end_their_request_alone_and_mistakes_run_nothing(llm: LLM) -> None:
    asked = [params({"shift": 1.0, "fault": "raises"}), params({"shift": 1.0}), params({"start": "x"})]
    outputs = llm.generate(PROMPTS, asked, use_tqdm=False)
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert reasons == ["error", "length", "error"]
    assert "logits processor executor.own_processors:Shifts failed: KeyError" in str(outputs[0].outputs[0].stop_reason)
    assert "Counts failed: TypeError" in str(outputs[2].outputs[0].stop_reason)
    with pytest.raises(RequestError, match=r"Prompt 1: .*Shifts: shift is 'far'; expected a number"):
        llm.generate(PROMPTS, [params(), params({"shift": "far"}), params()], use_tqdm=False)
    assert tokens(llm.generate("a", params({"target_token": 5}), use_tqdm=False)) == [[5] * 12], "the engine lives"


def test_drafts_change_no_token_of_requests_with_processors(tiny_llama: Path) -> None:
    """Their drafts are verified with the processor; those who must see every position in order have none."""
    asked: list[SamplingParams] = []
    for temperature in (0.0, 0.8):
        shared: dict[str, Any] = {"max_tokens": 40, "temperature": temperature, "seed": 1, "logprobs": 2}
        asked += [params({"shift": 30.0}, **shared), params(None, **shared)]
    counting = {"prompt_token_ids": [*range(30, 80), 29]}  # the processor makes it go on with what it began with
    ngram = {"method": "ngram", "num_speculative_tokens": 4, "adaptive": False}
    found = []
    for classes, speculation in (([Shifts], None), ([Shifts], ngram), ([Shifts, Counts], ngram)):
        with LLM(str(tiny_llama), logits_processors=classes, speculative_config=speculation, **SETTINGS) as engine:
            outputs = engine.generate([counting] * len(asked), asked, use_tqdm=False)
            drafts = {metric.name: metric for metric in engine.get_metrics()}["vllm:spec_decode_num_draft_tokens"]
        rows = [(list(choice.token_ids), choice.logprobs) for output in outputs for choice in output.outputs]
        found.append((rows, drafts.value))
    (plain, none), (drafted, num_drafts), (in_order, num_in_order) = found
    assert plain == drafted == in_order
    assert num_drafts > 20 and none == 0, "Shifts takes drafts as they come"
    assert num_in_order == 0, "Counts follows every request, so none has drafts"


def test_mistakes_in_names_are_told_before_weights_are_read(tiny_llama: Path) -> None:
    class Local:
        pass

    cases: list[tuple[Any, str]] = [
        ("no_such_module:Thing", "--logits-processors no_such_module:Thing: no_such_module cannot be imported"),
        ("shifts", "'shifts': no such plugin"),
        (Local, "is defined in a function"),
        (3, "is a int; expected a name, an import path, or a class"),
    ]
    for entry, sentence in cases:
        with pytest.raises((UserError, ConfigError)) as caught:
            LLM(str(tiny_llama), logits_processors=[entry], **SETTINGS)
        assert sentence in str(caught.value)
    with pytest.raises(ConfigError, match="is defined in the program itself"):
        AsyncLLM(str(tiny_llama), logits_processors=[type("Own", (), {"__module__": "__main__"})])


@pytest.mark.slow
async def test_the_engine_in_a_process_of_its_own_refuses_mistakes_as_well(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=":")
    async with AsyncLLM(str(tiny_llama), logits_processors=[Shifts, Target], **SETTINGS) as engine:
        with pytest.raises(RequestError, match="shift is 'far'"):
            async for _ in engine.generate("a", params({"shift": "far"}), "wrong"):
                pass
        async for output in engine.generate("a", params({"target_token": 9}), "right"):
            last = output
        assert tokens([last]) == [[9] * 12]


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
def test_numbers_are_those_of_transformers(tiny_llama: Path, plain: LLM, mode: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    prompt = [10, 20, 30, 40, 50]
    asked = params(
        None, max_tokens=3, temperature=0.5, seed=1, logprobs=-1, prompt_logprobs=-1, logit_bias={7: 3.0}, top_k=20
    )
    with LLM(str(tiny_llama), logprobs_mode=mode, **SETTINGS) as engine:
        output = engine.generate({"prompt_token_ids": prompt}, asked, use_tqdm=False)[0]
    choice = output.outputs[0]
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + list(choice.token_ids)])).logits[0].double()
    raw = logits if mode.endswith("logits") else logits.log_softmax(1)
    assert output.prompt_logprobs is not None and choice.logprobs is not None
    for place, entry in enumerate(output.prompt_logprobs):
        if entry is not None:
            assert len(entry) == logits.shape[1], "the whole vocabulary"
            found = torch.tensor([entry[token].logprob for token in range(len(entry))], dtype=torch.float64)
            assert torch.allclose(found, raw[place - 1], atol=2e-3)
    for step, entry in enumerate(choice.logprobs):
        expected = logits[len(prompt) - 1 + step].clone()
        if mode.startswith("processed"):
            expected[7] += 3.0
            expected /= 0.5
            expected[expected < expected.topk(20).values[-1]] = -torch.inf
        if mode.endswith("logprobs"):
            expected = expected.log_softmax(0)
        found = torch.tensor([entry[token].logprob for token in range(len(entry))], dtype=torch.float64)
        assert torch.allclose(found, expected, atol=5e-3)
    same = plain.generate({"prompt_token_ids": prompt}, asked, use_tqdm=False)[0]
    assert same.outputs[0].token_ids == choice.token_ids, "what is told changes no token"
