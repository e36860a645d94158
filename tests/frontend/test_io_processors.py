"""IO processors: data to prompts, outputs to answers, and what goes wrong in one costs its own request."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core import LLM
from core.api.errors import ConfigError, RequestError
from core_config.resolve import resolve
from core_frontend.api.pooling_params import PoolingParams
from core_frontend.io.pool import IOPool
from tests.frontend.own_io_processor import settings, write_plugin

DOCUMENT = "It rained.\n\nAda wrote it.\n\nNobody was there."


def asked(question: str) -> bytes:
    return msgspec.json.encode({"data": {"question": question, "document": DOCUMENT}})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (asked("raise"), "'mine' failed on this request"),
        (asked("leave"), "'mine' failed on this request"),
        (asked("end"), "ended on this request"),
        (b'{"data": {"question": "a"}}', "missing required field `document`"),
        (b'{"data": {"question": "a", "document": "b"}, "input": "c"}', "exclude each other"),
        (b'{"data":', "not valid JSON"),
        (b'{"data": "\xff"}', "not valid JSON"),
    ],
)
def test_what_goes_wrong_is_the_answer_to_its_own_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, body: bytes, words: str
) -> None:
    async def run() -> None:
        pool = IOPool(settings(tmp_path))
        try:
            with pytest.raises(RequestError, match=words):
                await pool.body(body)
            whole = asked("Who?").replace(b'{"data"', b'{"input":null,"task":null,"dimensions":4,"data"')
            made = msgspec.json.decode(await pool.body(whole))
            assert made["input"] == ["Who?", "It rained.", "Ada wrote it.", "Nobody was there."]
            assert (
                made["task"] == "embed"
                and made["dimensions"] == 4
                and msgspec.json.decode(made["data"])["question"] == "Who?"
            )
        finally:
            await pool.close()

    asyncio.run(run())
    assert ("no such passage" in caplog.text) == (body == asked("raise"))


def test_one_that_hangs_holds_up_no_other_request(tmp_path: Path) -> None:
    async def run() -> None:
        pool = IOPool(settings(tmp_path))
        first = pool.helpers[0]
        try:
            assert await pool.body(b'{"input": "plain"}') == b'{"input": "plain"}'
            first.lane = dataclasses.replace(first.lane, job_seconds=1.5)
            hung = asyncio.create_task(pool.body(asked("hang")))
            await asyncio.sleep(0)
            assert b"It rained." in await pool.body(asked("Who?"))
            with pytest.raises(RequestError, match="did not answer within") as told:
                await hung
            assert told.value.code == "too_much_work"
            assert b"It rained." in await pool.body(asked("Who?"))
        finally:
            await pool.close()

    asyncio.run(run())


def test_scripts_get_the_processors_answers(tmp_path: Path, tiny_llama: Path) -> None:
    """They are those of the vectors that `embed` returns."""
    options: dict[str, Any] = {"runner": "pooling", "max_model_len": 64, "dtype": "float32", "use_tqdm_on_load": False}
    plugins = str(write_plugin(tmp_path))
    data = {"question": "Who?", "document": DOCUMENT, "passages": 3}
    with LLM(str(tiny_llama), io_processor_plugin="mine", plugins=plugins, **options) as llm:
        [answer] = llm.encode({"data": data}, use_tqdm=False)
        question, *passages = llm.embed(["Who?", *DOCUMENT.split("\n\n")], use_tqdm=False)
        scores = [
            sum(a * b for a, b in zip(passage.outputs.embedding, question.outputs.embedding, strict=True))
            for passage in passages
        ]
        found = answer.outputs["passages"]
        assert [one["score"] for one in found] == pytest.approx(sorted(scores, reverse=True), abs=1e-5)
        for question_text, words in (("raise", "failed on this request"), ("after raise", "failed on this request")):
            with pytest.raises(RequestError, match=words):
                llm.encode({"data": data | {"question": question_text}}, use_tqdm=False)
        with pytest.raises(RequestError, match="cannot be given with data"):
            llm.encode({"data": data, "prompt": "x"}, use_tqdm=False)
        [other] = llm.encode({"data": data}, pooling_params=PoolingParams(dimensions=8), use_tqdm=False)
        assert [one["score"] for one in other.outputs["passages"]] != [one["score"] for one in found]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"io_processor_plugin": "mini", "runner": "pooling"}, "mine.*Did you mean 'mine'"),
        ({"io_processor_plugin": "mine"}, "the model generates text"),
        ({"io_processor_config": {"a": 1}}, "no IO processor is used"),
    ],
    ids=str,
)
def test_refusals_are_sentences(tmp_path: Path, tiny_llama: Path, arguments: dict[str, object], words: str) -> None:
    plugins = str(write_plugin(tmp_path))
    with pytest.raises(ConfigError, match=words):
        resolve({"model": str(tiny_llama), "plugins": plugins, **arguments}, context="explain")
