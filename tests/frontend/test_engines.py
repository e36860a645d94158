"""`LLMEngine` and `AsyncLLM` on a model that follows a formula: the loops that scripts write around them."""

import asyncio
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from engine.fakes import FakeExecutor, make_config, make_resolution, reference

import core_frontend.library.async_llm as async_module
from core import LLM, AsyncEngineArgs, AsyncLLM, EngineArgs, LLMEngine, RequestOutput, SamplingParams, SharedTensors
from core.api.errors import ConfigError, EngineDeadError, RequestError
from core.api.sampling_params import RequestOutputKind
from core_frontend.async_engine import AsyncEngine
from tests.inside import core_of

TARGET = "engine.fakes:FakeExecutor"


def fake_resolution(**options: Any) -> Any:
    resolution = make_resolution(make_config(options=options))
    resolution.warnings = []
    return resolution


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Engines run on the fake executor. Gives the arguments of each."""
    asked: list[dict[str, Any]] = []

    def resolve(arguments: dict[str, Any], *, context: str) -> Any:
        asked.append(arguments)
        slow = {"delay_s": 0.02} if context == "serve" else {}
        return fake_resolution(**slow)

    module = ModuleType("core_config.resolve")
    vars(module)["resolve"] = resolve
    monkeypatch.setitem(sys.modules, "core_config.resolve", module)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # for the engine's process
    monkeypatch.setattr(async_module, "resolve", resolve)
    monkeypatch.setattr(AsyncEngine, "start", partial(AsyncEngine.start, executor=TARGET))
    yield asked


def run(engine: LLMEngine) -> dict[str, RequestOutput]:
    """The last outputs of all requests."""
    last: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            last[output.request_id] = output
    return last


def test_requests_join_while_others_run(fakes: list[dict[str, Any]]) -> None:
    with LLMEngine.from_engine_args(EngineArgs(model="some/model", max_num_seqs=3)) as engine:
        assert fakes[0]["model"] == "some/model" and fakes[0]["max_num_seqs"] == 3
        assert engine.add_request("a", "first", SamplingParams(max_tokens=9)) == "a"
        seen = [engine.step() for _ in range(3)]
        lengths = [len(output.outputs[0].token_ids) for step in seen for output in step]
        assert lengths == [1, 2, 3], "states are told as they grow"
        engine.add_request("b", {"prompt": "second"}, SamplingParams(max_tokens=4), lora_request=None)
        engine.add_request("gone", "third", SamplingParams(max_tokens=50))
        assert engine.get_num_unfinished_requests() == 3
        engine.abort_request("gone")
        last = run(engine)
        assert {name: output.outputs[0].token_ids for name, output in last.items()} == {
            "a": reference(list(b"first"), 9),
            "b": reference(list(b"second"), 4),
        }
        assert all(output.finished for output in last.values())
        assert engine.stats().num_running == engine.stats().num_waiting == 0
        assert not core_of(engine).has_work()


def test_the_prefix_cache_is_forgotten_while_requests_run(fakes: list[dict[str, Any]]) -> None:
    with LLMEngine() as engine:
        text = "x" * 40
        for name in ("a", "b"):
            engine.add_request(name, text, SamplingParams(max_tokens=9))
        for _ in range(3):
            engine.step()
        assert not engine.reset_prefix_cache(), "its blocks are in use"
        assert engine.reset_prefix_cache(reset_running_requests=True)
        last = run(engine)
        assert [last[name].outputs[0].token_ids for name in "ab"] == [reference(list(text.encode()), 9)] * 2


def test_mistakes_leave_the_engine_as_it_was(fakes: list[dict[str, Any]]) -> None:
    with LLM() as engine:
        engine.add_request("a", "first", SamplingParams(max_tokens=2))
        with pytest.raises(RequestError, match="'a' is an unfinished request's"):
            engine.add_request("a", "x", SamplingParams())
        with pytest.raises(RequestError, match="The prompt is empty"):
            engine.add_request("b", "", SamplingParams())
        with pytest.raises(RequestError, match="expected a text"):
            engine.add_request(1, "x", SamplingParams())  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="serves no adapters: build it with enable_lora=True"):
            engine.add_request("b", "x", SamplingParams(), lora_request="adapter")
        with pytest.raises(TypeError, match=r"'lora_reqest'. Did you mean 'lora_request'"):
            engine.generate("x", lora_reqest=None)
        with pytest.raises(RequestError, match="request_id is 3; expected a text or a list"):
            engine.abort_request(3)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="engine_args is a dict; expected EngineArgs"):
            LLMEngine.from_engine_args({"model": "some/model"})
        with pytest.raises(RequestError, match="expected a mapping of names to tensors"):
            SharedTensors({"norm": 3})  # type: ignore[dict-item]
        with pytest.raises(RequestError, match="add_request or enqueue are unfinished"):
            engine.generate("x")
        assert list(run(engine)) == ["a"]
        assert engine.generate("x", SamplingParams(max_tokens=1), lora_request=None, use_tqdm=False)[0].finished
        with pytest.raises(RequestError, match="'multi_modal_data'"):
            engine.generate({"prompt": "x", "multi_modal_data": {"image": 1}})
        nothing = {"prompt": "x", "multi_modal_data": None, "mm_processor_kwargs": {}}
        assert engine.generate(nothing, use_tqdm=False)[0].finished


def test_metrics_have_the_names_that_scripts_compare(fakes: list[dict[str, Any]]) -> None:
    from core_compat.v1.metrics.reader import Counter, Gauge, Vector  # type: ignore[import-not-found]

    with LLM() as llm:
        llm.generate(["x" * 30, "x" * 30 + "y"], SamplingParams(max_tokens=2), use_tqdm=False)
        found = {metric.name: metric for metric in llm.get_metrics()}
        queries = found["vllm:prefix_cache_queries"]
        assert isinstance(queries, Counter) and queries.value == llm.stats().prefix_queries > 0
        assert isinstance(found["vllm:kv_cache_usage_perc"], Gauge)
        assert isinstance(found["vllm:spec_decode_num_accepted_tokens_per_pos"], Vector)


def test_what_vllm_has_besides_is_told(fakes: list[dict[str, Any]]) -> None:
    with LLM() as llm:
        assert llm.vllm_config.model_config.max_model_len == llm.model_config.max_model_len > 0
        assert llm.get_supported_tasks() == ("generate",) and llm.get_world_size() == 1
        with pytest.raises(AttributeError, match="LLM has no do_log_stats: a server and AsyncLLM log statistics"):
            llm.do_log_stats()  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match=r"no attribute 'generat'\. Did you mean 'generate'"):
            llm.generat("x")  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match="there is no setting 'dtype' here; there are: "):
            _ = llm.model_config.dtype
        assert not hasattr(llm, "__iter__")


def test_the_worker_can_be_called(fakes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    class Worker:
        def add(self, first: int, second: int) -> int:
            return first + second

    monkeypatch.setattr(FakeExecutor, "worker", Worker(), raising=False)
    with LLM() as llm:
        assert llm.collective_rpc(lambda worker, more: worker.add(1, more), args=(2,)) == [3]
        assert llm.collective_rpc("add", kwargs={"first": 2, "second": 3}) == [5]
        assert llm.collective_rpc("init_weight_transfer_engine") == [None]
        with pytest.raises(RequestError, match="expected arguments: level, mode"):
            llm.collective_rpc("sleep", kwargs={"depth": 1})
        for name in ("no_such", "__init__"):
            with pytest.raises(RequestError, match=f"no method '{name}'"):
                llm.collective_rpc(name)


async def test_streams_beside_each_other(fakes: list[dict[str, Any]]) -> None:
    async def stream(engine: AsyncLLM, name: str, params: SamplingParams) -> list[int]:
        ids: list[int] = []
        async for output in engine.generate(name, params, request_id=name, lora_request=None):
            ids += output.outputs[0].token_ids
        return ids

    async def main() -> None:
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="some/model"), start_engine_loop=True)
        assert fakes[0]["model"] == "some/model"
        assert engine.is_running and not engine.is_stopped
        params = SamplingParams(max_tokens=12, output_kind=RequestOutputKind.DELTA)
        found = await asyncio.gather(*[stream(engine, name, params) for name in ("one", "two", "three")])
        assert found == [reference(list(name.encode()), 12) for name in ("one", "two", "three")]
        tokenizer = await engine.get_tokenizer()
        assert tokenizer.decode([104, 105]) == "hi"
        long = engine.generate("long", SamplingParams(max_tokens=50), "long")
        await anext(long)
        assert await engine.reset_prefix_cache(reset_running_requests=True)
        await engine.abort("long")
        *_, last = [output async for output in long]
        assert last.outputs[0].finish_reason == "abort"
        with pytest.raises(RequestError, match="request_id is 3; expected a text"):
            await anext(engine.generate("x", params, 3))  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="serves no adapters"):
            await anext(engine.generate("x", params, "x", lora_request="adapter"))
        assert await engine.reset_prefix_cache()
        await engine.check_health()
        running = engine.generate("cut", SamplingParams(max_tokens=50), "cut")
        await anext(running)
        engine.shutdown()
        with pytest.raises(EngineDeadError, match="closed"):
            async for _ in running:
                pass
        engine.shutdown()
        await engine.close()
        assert engine.is_stopped
        with pytest.raises(EngineDeadError, match="shut down"):
            await anext(engine.generate("x", params, "x"))

    async with asyncio.timeout(30):
        await main()


def test_prompts_are_queued_and_waited_for(fakes: list[dict[str, Any]]) -> None:
    with LLM("some/model") as llm:
        first = llm.enqueue(["one", "two"], SamplingParams(max_tokens=9), use_tqdm=False)
        second = llm.enqueue("three", SamplingParams(max_tokens=2), priority=[1])
        llm.add_request("own", "four", SamplingParams(max_tokens=4))
        assert llm.get_num_unfinished_requests() == 4
        with pytest.raises(RequestError, match="add_request or enqueue are unfinished"):
            llm.generate("five")
        with pytest.raises(RequestError, match="Prompt 1: "):
            llm.enqueue(["six", ""], SamplingParams(max_tokens=2))
        outputs = llm.wait_for_completion(RequestOutput, use_tqdm=False)
        assert [output.request_id for output in outputs] == [*first, *second, "own"]
        lengths = [9, 9, 2, 4]
        for output, text, length in zip(outputs, ("one", "two", "three", "four"), lengths, strict=True):
            assert output.finished and output.outputs[0].token_ids == reference(list(text.encode()), length)
        assert llm.wait_for_completion(use_tqdm=False) == []
        llm.enqueue("seven", SamplingParams(max_tokens=2))
        with pytest.raises(TypeError, match="gave a RequestOutput, expected"):
            llm.wait_for_completion(int, use_tqdm=False)


def test_metrics_tell_what_requests_took(fakes: list[dict[str, Any]]) -> None:
    with LLM("some/model") as llm:
        llm.generate(["ab", "cdef"], SamplingParams(max_tokens=5, n=1), use_tqdm=False)
        found = {(metric.name, metric.labels.get("finished_reason")): metric for metric in llm.get_metrics()}
    values = {name: metric.value for (name, reason), metric in found.items() if hasattr(metric, "value")}
    assert values["vllm:prompt_tokens"] == 6 and values["vllm:generation_tokens"] == 10
    assert found["vllm:request_success", "length"].value == 2
    counts = {
        "time_to_first_token_seconds": 2,
        "inter_token_latency_seconds": 8,
        "e2e_request_latency_seconds": 2,
        "request_time_per_output_token_seconds": 2,
        "request_queue_time_seconds": 2,
        "request_prompt_tokens": 2,
        "request_generation_tokens": 2,
    }
    for name, count in counts.items():
        histogram = found[f"vllm:{name}", None]
        assert histogram.count == histogram.buckets["+Inf"] == count, name
        assert list(histogram.buckets.values()) == sorted(histogram.buckets.values())
    assert found["vllm:request_prompt_tokens", None].sum == 6
    assert found["vllm:request_prompt_tokens", None].buckets["2.0"] == 1
    ttft, latency = (found[f"vllm:{name}", None].sum for name in list(counts)[:3:2])
    assert 0 < ttft < latency
