"""Receipts, recorded traffic and comparisons of requests with adapters and with pictures."""

import asyncio
import base64
from typing import Any

import pytest

from core_apis.receipts import traffic_recorder
from core_apis.traffic.records import read_traffic
from core_commands.replay.comparison import Comparison, Recorded, compare
from core_config.served.server_config import RecordSettings, ServerConfig
from tests.adapters.drawn import shapes_of, write_adapter
from tests.media.checkpoints import file_of, picture, save_llava
from tests.receipts import checking

LENGTH = ["--max-model-len", "512", "--dtype", "float32"]
ADAPTED = {"model": "sql", "prompt": "the fox", "max_tokens": 12, "temperature": 0.8, "seed": 3, "ignore_eos": True}
PLAIN = ADAPTED | {"model": "the-base"}


async def recorded(engine: Any, folder: Any, *requests: tuple[str, dict[str, Any]]) -> list[Recorded]:
    """Send requests to an engine that records, and return what it recorded."""
    context = engine.context
    server = ServerConfig(recording=RecordSettings(directory=str(folder), share=1.0))
    context.traffic = traffic_recorder(server, context.engine, None)
    for path, body in requests:
        await checking.ask(engine, path, body)
    await asyncio.to_thread(context.traffic.close)
    context.traffic = None
    return [
        Recorded.of(number, record) for number, record in enumerate(read_traffic(str(folder))) if record is not None
    ]


async def difference(engine: Any, records: list[Recorded]) -> Comparison:
    found = Comparison("left", "right")
    for record in records:
        await compare(engine, record, found)
    return found


@pytest.fixture(scope="module")
def adapters(tiny_llama, tmp_path_factory):
    """What an engine with an adapter says of it, and engines with another adapter under its name, or none."""
    folder = tmp_path_factory.mktemp("adapters")
    shapes = shapes_of(str(tiny_llama))
    sql = write_adapter(folder / "sql", shapes, 4, 1)
    other = write_adapter(folder / "other", shapes, 4, 2)
    results: dict[str, Any] = {}
    kept: dict[str, Any] = {}

    async def left(engine: Any) -> None:
        answer = await checking.ask(engine, checking.TEXT, ADAPTED)
        kept["answer"] = answer
        [(receipt, opening)] = kept["receipts"] = checking.receipts_of(answer)
        results["digest"] = receipt.adapter, engine.context.adapters.engine.known("sql").facts.digest
        results["verified"] = await checking.verdict(engine, checking.TEXT, ADAPTED, [(receipt, opening)], answer)
        base = await checking.ask(engine, checking.TEXT, PLAIN | {"model": str(tiny_llama)})
        kept["base"] = checking.receipts_of(base)
        results["base"] = kept["base"][0][0].adapter
        results["same tokens"] = base["choices"][0]["text"] == answer["choices"][0]["text"]
        as_base = PLAIN | {"model": str(tiny_llama)}
        results["as base"] = await checking.verdict(engine, checking.TEXT, as_base, kept["receipts"])
        requests = [(checking.TEXT, ADAPTED), (checking.TEXT, as_base)]
        kept["records"] = await recorded(engine, folder / "records", *requests)
        results["same"] = await difference(engine, kept["records"])

    async def right(engine: Any) -> None:
        results["other numbers"] = await checking.verdict(engine, checking.TEXT, ADAPTED, kept["receipts"])
        # The engine that verifies has its own name for the model.
        results["other name"] = await checking.verdict(engine, checking.TEXT, PLAIN, kept["base"])
        results["other adapter"] = await difference(engine, kept["records"])

    async def bare(engine: Any) -> None:
        results["no adapter"] = await difference(engine, kept["records"])

    def words(path: Any) -> list[str]:
        return ["--model", str(tiny_llama), *LENGTH, "--enable-lora", "--lora-modules", f"sql={path}"]

    checking.run_on_engine(words(sql), left)
    checking.run_on_engine([*words(other), "--served-model-name", "right"], right)
    checking.run_on_engine(["--model", str(tiny_llama), *LENGTH, "--served-model-name", "bare"], bare)
    return results


def test_a_receipt_has_the_digest_of_the_adapter_and_is_verified_with_it(adapters):
    assert adapters["digest"][0] == adapters["digest"][1] != ""
    assert adapters["base"] == "" and not adapters["same tokens"]
    assert adapters["verified"].code == 0, adapters["verified"].sentence


def test_a_receipt_of_an_adapter_is_none_of_the_base_model_or_of_other_numbers(adapters):
    for name in ("as base", "other numbers"):
        assert adapters[name].code == 1
        assert adapters[name].sentence.startswith("adapter: the receipt says "), adapters[name].sentence


def test_the_base_model_may_have_another_name_where_it_is_verified(adapters):
    assert adapters["other name"].code == 0, adapters["other name"].sentence


def test_records_of_an_adapter_differ_in_nothing_from_their_engine(adapters):
    assert (adapters["same"].num_requests, adapters["same"].rows, adapters["same"].causes) == (2, [], {})


def test_an_adapter_with_other_numbers_is_told_as_the_cause(adapters):
    found = adapters["other adapter"]
    [row] = found.rows
    assert row.tokens and row.number == 0 and found.causes == {"adapter": 1}
    assert row.causes[0].startswith("The adapter is another one: ")


def test_an_engine_without_the_adapter_is_told_and_answers_the_other_requests(adapters):
    [row] = adapters["no adapter"].rows
    assert row.number == 0 and "The model 'sql' does not exist" in row.problem


def asked(seed: int) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(file_of(picture(seed))).decode()
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    more = {"max_tokens": 10, "temperature": 0.7, "seed": 2, "ignore_eos": True}
    return {"model": "m", "messages": [{"role": "user", "content": parts}], **more}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """What an engine says of answers to pictures, and another engine of the same model."""
    folder = tmp_path_factory.mktemp("pictures")
    model = save_llava(folder / "llava")
    words = ["--model", str(model), *LENGTH, "--served-model-name", "m"]
    results: dict[str, Any] = {}
    kept: dict[str, Any] = {}

    async def left(engine: Any) -> None:
        answer = await checking.ask(engine, checking.CHAT, asked(1))
        kept["answer"], kept["receipts"] = answer, checking.receipts_of(answer)
        results["inputs"] = kept["receipts"][0][0].inputs
        kept["records"] = await recorded(engine, folder / "records", (checking.CHAT, asked(1)))
        results["same"] = await difference(engine, kept["records"])

    async def right(engine: Any) -> None:
        results["verified"] = await checking.verdict(engine, checking.CHAT, asked(1), kept["receipts"], kept["answer"])
        results["other picture"] = await checking.verdict(engine, checking.CHAT, asked(2), kept["receipts"])
        [record] = kept["records"]
        record.body = asked(2)
        results["changed"] = await difference(engine, [record])

    checking.run_on_engine(words, left)
    checking.run_on_engine(words, right)
    return results


def test_an_answer_to_a_picture_is_verified_by_another_engine(pictures):
    assert pictures["inputs"].startswith("sha256:")
    assert pictures["verified"].code == 0, pictures["verified"].sentence


def test_another_picture_is_named(pictures):
    assert pictures["other picture"].code == 1
    assert pictures["other picture"].sentence.startswith("inputs: the receipt says ")


def test_records_with_pictures_differ_in_nothing_from_their_engine(pictures):
    assert (pictures["same"].num_requests, pictures["same"].rows) == (1, [])


def test_a_picture_that_has_changed_is_told_as_the_cause(pictures):
    [row] = pictures["changed"].rows
    assert row.tokens and row.causes == ["Pictures or embeddings are other ones, in prompt 0."]
    assert row.question == "what is it? [image_url]"


def test_the_same_model_under_another_name_answers_recorded_requests(adapters):
    """Bodies name the model of the engine that recorded them; every client sends that name."""
    assert [row.number for row in adapters["other adapter"].rows] == [0]
