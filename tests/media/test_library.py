"""`LLM` with pictures: the tokens of transformers, and what a cache may answer."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import LLM, AsyncLLM, SamplingParams
from core.api.errors import RequestError
from tests.media.checkpoints import file_of, picture
from tests.media.comparison import GREEDY, Reference, assert_same, ours, prompt_of

ONE = "ab<image>cd"
TWO = "ab<image>c<image>de"


@pytest.fixture(scope="module")
def llm(llava: Path) -> Iterator[LLM]:
    with LLM(model=str(llava), dtype="float32", max_model_len=512, block_size=16, seed=0) as made:
        yield made


@pytest.fixture(scope="module")
def reference(llm: LLM, llava: Path) -> Reference:
    return Reference(llm, llava)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("abc", []), (ONE, [(50, 40)]), (ONE, [(1, 1)]), (ONE, [(3, 300)]), (TWO, [(28, 28), (129, 61)])],
)
def test_tokens_and_logits_are_those_of_transformers(
    llm: LLM, reference: Reference, text: str, sizes: list[tuple[int, int]]
) -> None:
    images = [picture(index, *size) for index, size in enumerate(sizes)]
    [found] = ours(llm, [prompt_of(text, images) if images else {"prompt": text}])
    assert_same(found, reference.answer(text, images))


def test_another_picture_behind_the_same_text_misses_the_cache(llm: LLM) -> None:
    text = "y" * 30 + "<image>" + "z" * 30
    first = llm.generate([prompt_of(text, [picture(7)])], GREEDY, use_tqdm=False)[0]
    other = llm.generate([prompt_of(text, [picture(8)])], GREEDY, use_tqdm=False)[0]
    again = llm.generate([prompt_of(text, [picture(7)])], GREEDY, use_tqdm=False)[0]
    assert other.num_cached_tokens <= 30 < again.num_cached_tokens
    assert first.outputs[0].token_ids == again.outputs[0].token_ids != other.outputs[0].token_ids


def test_conversations_take_parts_and_placeholders_of_users_are_text(llm: LLM) -> None:
    import base64

    url = f"data:image/png;base64,{base64.b64encode(file_of(picture(3))).decode()}"
    parts = [{"type": "text", "text": "see <image>"}, {"type": "image_url", "image_url": {"url": url}}]
    [chat] = llm.chat([{"role": "user", "content": parts}], GREEDY, use_tqdm=False)
    assert list(chat.prompt_token_ids).count(llm.get_tokenizer().convert_tokens_to_ids("<image>")) == 4
    written = "".join(["<|user|>see ", "<imag"])
    assert chat.prompt is not None and chat.prompt.startswith(written)


def test_forms_of_pictures_are_one(llm: LLM, tmp_path: Path) -> None:
    import numpy as np

    image = picture(4)
    path = tmp_path / "picture.png"
    image.save(path)
    forms = [image, np.asarray(image), file_of(image), str(path), path]
    answers = [ours(llm, [{"prompt": ONE, "multi_modal_data": {"image": form}}])[0] for form in forms]
    assert all(answer == answers[0] for answer in answers)


def test_prompts_of_token_ids_are_those_of_their_text(llm: LLM) -> None:
    images = [picture(5), picture(6)]
    [expected] = ours(llm, [prompt_of(TWO, images)])
    ids = llm.get_tokenizer().encode(TWO)
    assert len(ids) < len(expected.prompt)
    assert ours(llm, [{"prompt_token_ids": ids, "multi_modal_data": {"image": images}}]) == [expected]


@pytest.mark.media
def test_an_asyncio_program_gives_pictures_too(llm: LLM, llava: Path) -> None:
    prompts = [prompt_of(ONE, [picture(seed)]) for seed in range(3)]
    expected = [answer.token_ids for answer in ours(llm, prompts)]

    async def tokens(engine: AsyncLLM, number: int) -> list[int]:
        async for output in engine.generate(prompts[number], GREEDY, f"request-{number}"):
            found = list(output.outputs[0].token_ids)
        return found

    async def run() -> list[list[int]]:
        async with AsyncLLM(str(llava), dtype="float32", max_model_len=512, block_size=16, seed=0) as engine:
            with pytest.raises(RequestError, match="0 placeholders <image> for 1 pictures"):
                async for _ in engine.generate({**prompts[0], "prompt": "ab"}, GREEDY, "wrong"):
                    pass
            return list(await asyncio.gather(*(tokens(engine, number) for number in range(3))))

    assert asyncio.run(run()) == expected


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ({"prompt": "ab", "multi_modal_data": {"image": picture()}}, "0 placeholders <image> for 1 pictures"),
        ({"prompt": TWO, "multi_modal_data": {"image": picture()}}, "2 placeholders <image> for 1 pictures"),
        ({"prompt": ONE, "multi_modal_data": {"video": [picture()]}}, "this model takes 'image' only"),
        ({"prompt": ONE, "multi_modal_data": {"image": b"no"}}, "it is no picture"),
        ({"prompt": ONE, "multi_modal_data": {"image": 7}}, "expected a PIL image"),
        ({"prompt": ONE, "multi_modal_data": {"image": [picture()] * 17}}, "at most 16 are taken"),
        ({"prompt_token_ids": [5, 6], "multi_modal_data": {"image": picture()}}, "0 tokens that stand for a picture"),
        ({"prompt_token_ids": "ab", "multi_modal_data": {"image": picture()}}, "no list of whole numbers"),
        ({"multi_modal_data": {"image": picture()}}, "belongs to a prompt of text or token ids"),
    ],
)
def test_wrong_pictures_are_refused(llm: LLM, prompt: dict[str, object], sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
    assert sentence in str(caught.value)
