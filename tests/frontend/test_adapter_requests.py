"""`LoRARequest` in the methods of `LLM`, `LLMEngine` and `AsyncLLM`, over the fake executor with adapters."""

import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from engine.adapting import adapted, adapting_config, written
from engine.fakes import make_resolution, reference

import core_frontend.library.async_llm as async_module
from core import LLM, AsyncLLM, SamplingParams
from core.api.errors import RequestError
from core_frontend.async_engine import AsyncEngine
from core_frontend.library.lora_request import LoRARequest

IDS = [1, 2, 3, 4]
PROMPT = {"prompt_token_ids": IDS}
FIVE = SamplingParams(max_tokens=5)


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(arguments: dict[str, Any], *, context: str) -> Any:
        resolution = make_resolution(adapting_config())
        resolution.warnings = []
        return resolution

    module = ModuleType("core_config.resolve")
    vars(module)["resolve"] = resolve
    monkeypatch.setitem(sys.modules, "core_config.resolve", module)
    tests = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", f"{tests}:{tests / 'engine'}:{tests.parent}")  # for the engine's process
    monkeypatch.setattr(async_module, "resolve", resolve)
    monkeypatch.setattr(AsyncEngine, "start", partial(AsyncEngine.start, executor="engine.adapting:AdaptingExecutor"))


def request(directory: Path, name: str, number: int = 0, **fields: Any) -> LoRARequest:
    return LoRARequest(name, number, written(directory, name).path, **fields)


def test_one_for_all_prompts_or_one_for_each(tmp_path: Path) -> None:
    sql, fr = request(tmp_path, "sql", 1), request(tmp_path, "fr", 2)
    with LLM() as llm:

        def said(prompts: int, given: Any) -> list[list[int]]:
            outputs = llm.generate([PROMPT] * prompts, FIVE, use_tqdm=False, lora_request=given)
            return [list(output.outputs[0].token_ids) for output in outputs]

        assert said(1, None) == [reference(IDS, 5)]
        assert said(2, sql) == [adapted(IDS, 5, "sql")] * 2
        each = [sql, None, fr]
        assert said(3, each) == [adapted(IDS, 5, "sql"), reference(IDS, 5), adapted(IDS, 5, "fr")]
        assert llm.list_loras() == {1, 2}
        assert llm.pin_lora(2) and not llm.pin_lora(3)
        assert llm.remove_lora(1) and not llm.remove_lora(1) and llm.list_loras() == {2}
        llm.add_request("a", PROMPT, FIVE, lora_request=fr)
        (output,) = llm.wait_for_completion(use_tqdm=False)
        assert list(output.outputs[0].token_ids) == adapted(IDS, 5, "fr")


def test_the_same_name_with_other_weights_needs_a_word(tmp_path: Path) -> None:
    with LLM() as llm:
        first = request(tmp_path, "a", 1)
        llm.add_lora(first)
        (tmp_path / "other").write_text("other")
        other = LoRARequest("a", 1, str(tmp_path / "other"))
        with pytest.raises(RequestError, match=r"the name stands for the adapter of .*load_inplace=True"):
            llm.generate(PROMPT, FIVE, lora_request=other)
        inplace = LoRARequest("a", 1, str(tmp_path / "other"), load_inplace=True)
        (output,) = llm.generate(PROMPT, FIVE, lora_request=inplace, use_tqdm=False)
        assert list(output.outputs[0].token_ids) == adapted(IDS, 5, "other")


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    with LLM() as llm:
        for given, words in (
            ("sql", "lora_request is a str; expected a LoRARequest"),
            (LoRARequest("nobody"), "no such adapter is loaded; give its lora_path"),
            (LoRARequest("gone", 1, str(tmp_path / "gone")), "cannot be read"),
            (request(tmp_path, "broken"), "it fits nothing"),
            ([None, None], "lora_request has 2 entries for 1 prompts"),
        ):
            with pytest.raises(RequestError, match=words):
                llm.generate([PROMPT], FIVE, lora_request=given)
        assert llm.generate(PROMPT, FIVE, use_tqdm=False)[0].finished


async def test_an_engine_of_its_own_process_takes_them_too(tmp_path: Path) -> None:
    sql = request(tmp_path, "sql", 7)
    async with AsyncLLM() as engine:
        found = [output async for output in engine.generate(PROMPT, FIVE, "a", lora_request=sql)]
        assert list(found[-1].outputs[0].token_ids) == adapted(IDS, 5, "sql")
        assert await engine.list_loras() == {7} and await engine.pin_lora(7)
        assert await engine.remove_lora(7) and await engine.list_loras() == set()
        with pytest.raises(RequestError, match="no such adapter is loaded"):
            await engine.add_lora(LoRARequest("sql"))


def test_scripts_import_it_by_vllms_name() -> None:
    from core.lora.request import LoRARequest as Found  # type: ignore[import-not-found]

    import core_compat  # noqa: F401

    assert Found is LoRARequest
