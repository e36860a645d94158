"""Ids that requests give items: in scripts, in chats, and what a tenant learns of another's."""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from core import LLM, SamplingParams
from core.api.errors import RequestError
from core_media.config import IMAGE, MediaConfig
from core_media.features import pack
from core_media.processing import item_names
from core_media.processing.item_names import ItemName, ItemNames
from core_media.processing.pool import ProcessingPool
from core_media.processing.process import Answer, Job
from core_media.processing.worker import Worker
from core_media.reading.parts import take_media
from tests.apis.test_real_server import Server, client_of, serving
from tests.media.checkpoints import file_of, picture
from tests.media.comparison import GREEDY, ours
from tests.media.test_server import ask, data_url, shown, text

ONE = "ab<image>cd"
TWO = "ab<image>c<image>de"
CONFIG = MediaConfig(model="", model_type="llava", placeholder="<image>", token_id=1, limits={IMAGE: 2})


def named(prompt: str, images: Any, ids: Any, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "multi_modal_data": {"image": images}, "multi_modal_uuids": {"image": ids}, **more}


@pytest.fixture(scope="module")
def llm(llava: Path) -> Iterator[LLM]:
    with LLM(model=str(llava), dtype="float32", max_model_len=512, block_size=16, seed=0) as made:
        yield made


def test_an_id_stands_for_the_item_that_was_first_sent_with_it(llm: LLM) -> None:
    plain = {"prompt": TWO, "multi_modal_data": {"image": [picture(1), picture(2)]}}
    expected = ours(llm, [plain])
    assert ours(llm, [named(TWO, [picture(1), picture(2)], ["first", "second"])]) == expected
    for images, ids in (
        ([picture(1), None], ["first", "second"]),
        ([None, None], ("first", "second")),
        (None, ["first", "second"]),
        ([None, picture(2)], ["first", None]),
        ([picture(7), b"no picture"], ["first", "second"]),  # what is known is not read again
    ):
        assert ours(llm, [named(TWO, images, ids)]) == expected
    by_ids = {"prompt": TWO, "multi_modal_uuids": {"image": ["first", "second"]}}
    assert ours(llm, [by_ids]) == expected
    twice = {"prompt": TWO, "multi_modal_data": {"image": [picture(3), picture(3)]}}
    assert ours(llm, [named(TWO, [None, picture(3)], ["third", "third"])]) == ours(llm, [twice])
    [other] = ours(llm, [named(TWO, None, ["second", "first"])])
    assert other.logprobs != expected[0].logprobs


def test_an_item_by_its_id_finds_the_cached_blocks_of_its_bytes(llm: LLM) -> None:
    line = "y" * 30 + "<image>" + "z" * 30
    llm.generate([{"prompt": line, "multi_modal_data": {"image": picture(11)}}], GREEDY, use_tqdm=False)
    [with_id] = llm.generate([named(line, picture(11), "eleven")], GREEDY, use_tqdm=False)
    [by_id] = llm.generate([named(line, None, "eleven")], GREEDY, use_tqdm=False)
    assert with_id.num_cached_tokens == by_id.num_cached_tokens > 30
    [other] = llm.generate([named(line, picture(12), "twelve")], GREEDY, use_tqdm=False)
    assert other.num_cached_tokens <= 30


def test_conversations_name_items_too(llm: LLM) -> None:
    def chat(part: dict[str, Any]) -> list[int]:
        asked = [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]
        [found] = llm.chat(asked, GREEDY, use_tqdm=False)
        return list(found.outputs[0].token_ids)

    url = f"data:image/png;base64,{base64.b64encode(file_of(picture(21))).decode()}"
    expected = chat({"type": "image_url", "image_url": {"url": url}, "uuid": "chat"})
    assert chat({"type": "image_url", "image_url": None, "uuid": "chat"}) == expected
    assert chat({"type": "image_url", "uuid": "chat"}) == expected
    assert chat({"type": "image_url", "image_url": {"url": None}, "uuid": "chat"}) == expected


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        (named(ONE, None, "unknown"), r"\['image'\]\[0\]: no picture with the id 'unknown' .* is kept"),
        (named(ONE, [None], ["unknown"]), "send the picture itself with its id"),
        (named(TWO, [picture(), picture()], ["one"]), "1 ids for 2 pictures"),
        (named(ONE, picture(), ["one", "two"]), "2 ids for 1 pictures"),
        (named(ONE, [None], None), "is None and has no id"),
        (named(ONE, picture(), [7]), "the id is '7'; expected a text of 1 to 256 characters"),
        (named(ONE, picture(), ["x" * 257]), "expected a text of 1 to 256 characters"),
        (named(ONE, picture(), [""]), "expected a text of 1 to 256 characters"),
        (
            {"prompt": ONE, "multi_modal_data": {"image": picture()}, "multi_modal_uuids": ["a"]},
            "multi_modal_uuids is a list",
        ),
        ({"prompt": ONE, "multi_modal_uuids": {"video": ["a"]}}, "this model takes 'image' only"),
    ],
)
def test_wrong_ids_are_refused(llm: LLM, prompt: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)


def test_other_options_make_another_item(llm: LLM) -> None:
    options = {"mm_processor_kwargs": {"do_normalize": False}}
    [seen] = ours(llm, [named(ONE, picture(31), "options")])
    with pytest.raises(RequestError, match="no picture with the id 'options' and these options"):
        llm.generate([named(ONE, None, "options", **options)], SamplingParams(max_tokens=1), use_tqdm=False)
    [other] = ours(llm, [named(ONE, picture(31), "options", **options)])
    assert other.logprobs != seen.logprobs
    assert ours(llm, [named(ONE, None, "options", **options), named(ONE, None, "options")]) == [other, seen]


def test_rows_and_models_of_text_have_no_ids() -> None:
    def message(**part: Any) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"type": "image_embeds", **part}]}]

    given = msgspec.structs.replace(CONFIG, row_size=4, around_rows={IMAGE: ("", "")})
    with pytest.raises(RequestError, match="rows are known by their digest"):
        take_media(message(image_embeds="AAAA", uuid="a"), given, "")
    asked = [{"role": "user", "content": [{"type": "image_url", "uuid": "a"}]}]
    with pytest.raises(RequestError, match="this model takes parts of type 'text' only"):
        take_media(asked, None, "")


def test_tenants_share_no_ids_and_what_left_the_cache_is_unknown(llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = MediaConfig(
        model=str(llava), model_type="llava", placeholder="<image>", token_id=0, limits={IMAGE: 4},
        processor_cache_bytes=20_000,  # of two pictures
    )  # fmt: skip
    pool, worker = ProcessingPool(config), Worker(config)

    async def work(job: Job, data: bytes, noun: str) -> Answer:
        made = worker.run(job.modality, data, job.declared, job.options)
        return Answer(made.text, pack(made.arrays), worker.identity)

    pool._ask = work  # type: ignore[method-assign]
    mine, theirs = ItemName("me", "a", IMAGE), ItemName("them", "a", IMAGE)

    async def run() -> None:
        first = await pool.run(file_of(picture(1)), name=mine)
        assert await pool.named(mine) == first
        assert await pool.named(theirs) is None
        second = await pool.run(file_of(picture(2)), name=theirs)
        assert (await pool.named(mine), await pool.named(theirs)) == (first, second)
        await pool.run(file_of(picture(3)))  # the picture that was used longest ago leaves
        assert (await pool.named(mine), await pool.named(theirs)) == (None, second)
        again = await pool.run(file_of(picture(4)), name=mine)
        assert await pool.named(mine) == again != first
        await pool.forget()
        assert await pool.named(mine) is None

    asyncio.run(run())
    monkeypatch.setattr(item_names, "MOST_NAMES", 2)
    names = ItemNames()
    for uuid in "abc":
        names.put(ItemName("", uuid, IMAGE), uuid.encode())
    assert [names.get(ItemName("", uuid, IMAGE)) for uuid in "abc"] == [None, b"b", b"c"]


@pytest.fixture(scope="module")
def server(llava: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    keys = ("--api-key", "mine", "theirs")
    with serving(log, "--model", str(llava), "--dtype", "float32", "--seed", "0", *keys) as running:
        yield running


@pytest.mark.media
def test_a_server_knows_the_ids_of_each_key(server: Server) -> None:
    mine, theirs = (client_of(server).with_options(api_key=key) for key in ("mine", "theirs"))
    part = {**shown(1), "uuid": "one"}
    by_id = {"type": "image_url", "image_url": None, "uuid": "one"}
    expected = ask(mine, text("ab"), part).choices
    assert ask(mine, text("ab"), by_id).choices == expected
    assert ask(mine, text("ab"), {**shown(2), "uuid": "one"}).choices == expected
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\].content\[1\]: no picture with the id 'one'"):
        ask(theirs, text("ab"), by_id)
    other = ask(theirs, text("ab"), {**shown(2), "uuid": "one"}).choices
    assert other != expected == ask(mine, text("ab"), by_id).choices
    assert ask(theirs, text("ab"), by_id).choices == other
    for bad in (7, "", "x" * 300, ["a"]):
        with pytest.raises(openai.BadRequestError, match="expected a text of 1 to 256 characters"):
            ask(mine, text("ab"), {"type": "image_url", "image_url": {"url": data_url(b"x")}, "uuid": bad})
