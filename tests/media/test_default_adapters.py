"""Adapters that prompts with media have of themselves: of scripts, of programs and of a server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from core import LLM, AsyncLLM, SamplingParams
from core.api.errors import ConfigError, RequestError
from core.api.messages import MediaItem
from core_frontend.library.lora_request import LoRARequest
from core_media.config import AUDIO, IMAGE, MediaConfig, Place
from core_media.default_adapters import adapter_of
from tests.adapters.drawn import shapes_of, write_adapter
from tests.apis.test_real_server import client_of, serving
from tests.media.checkpoints import picture
from tests.media.comparison import GREEDY, Answer, ours, prompt_of
from tests.media.test_server import ask, shown, text

SETTINGS: dict[str, Any] = {
    "dtype": "float32", "max_model_len": 512, "block_size": 16, "seed": 0, "enable_lora": True, "max_loras": 2,
}  # fmt: skip
SEEN = prompt_of("ab<image>cd", [picture(1)])
TEXT = {"prompt": "abcd"}


@pytest.fixture(scope="module")
def folders(llava: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters of the language model, by name."""
    folder = tmp_path_factory.mktemp("adapters")
    shapes = {name: shape for name, shape in shapes_of(str(llava)).items() if "vision" not in name}
    return {name: write_adapter(folder / name, shapes, 4, seed, 0.2) for seed, name in enumerate(("seen", "named"), 1)}


@pytest.fixture(scope="module")
def expected(llava: Path, folders: dict[str, Path]) -> dict[str, Answer]:
    """What adapters answer that requests name themselves."""
    with LLM(model=str(llava), **SETTINGS) as llm:
        answers = {"base": ours(llm, [SEEN])[0], "text": ours(llm, [TEXT])[0]}
        for name, folder in folders.items():
            [output] = llm.generate([SEEN], GREEDY, use_tqdm=False, lora_request=LoRARequest(name, 1, str(folder)))
            answers[name] = answer_of(output)
    assert len({str(answer.logprobs) for answer in answers.values()}) == len(answers)
    return answers


def answer_of(output: Any) -> Answer:
    [completion] = output.outputs
    scores = [{token: each.logprob for token, each in place.items()} for place in completion.logprobs or ()]
    return Answer(list(output.prompt_token_ids), list(completion.token_ids), scores)


@pytest.fixture(scope="module")
def llm(llava: Path, folders: dict[str, Path]) -> Iterator[LLM]:
    with LLM(model=str(llava), default_mm_loras={"image": str(folders["seen"])}, **SETTINGS) as made:
        yield made


def test_prompts_with_pictures_have_the_adapter_and_others_have_none(llm: LLM, expected: dict[str, Answer]) -> None:
    for _ in range(2):  # the second time with cached prefixes
        assert ours(llm, [SEEN, TEXT, SEEN]) == [expected["seen"], expected["text"], expected["seen"]]


def test_an_adapter_that_a_request_names_counts(
    llm: LLM, folders: dict[str, Path], expected: dict[str, Answer]
) -> None:
    named = LoRARequest("named", 2, str(folders["named"]))
    outputs = llm.generate([SEEN, SEEN], GREEDY, use_tqdm=False, lora_request=[named, None])
    assert [answer_of(output) for output in outputs] == [expected["named"], expected["seen"]]


def test_a_prompt_has_one_adapter() -> None:
    config = MediaConfig(
        model="", model_type="t", placeholder="<i>", token_id=1, limits={}, others={AUDIO: Place("<a>", 2)},
        adapters={IMAGE: "image", AUDIO: "audio"},
    )  # fmt: skip
    seen, heard = MediaItem(0, 1, "a", 1, b""), MediaItem(1, 2, "b", 2, b"")
    assert adapter_of([], config) == adapter_of([seen], None) == ""
    assert adapter_of([seen, seen], config) == "image"
    assert adapter_of([heard], config) == "audio"
    with pytest.raises(
        RequestError, match=r"pictures and sounds, which have different adapters .*: image, audio\."
    ) as told:
        adapter_of([seen, heard], config)
    assert told.value.param == "model"
    shared = MediaConfig(
        model="", model_type="t", placeholder="<i>", token_id=1, limits={}, others={AUDIO: Place("<a>", 2)},
        adapters={IMAGE: "image", AUDIO: "image"},
    )  # fmt: skip
    assert adapter_of([seen, heard], shared) == "image"


@pytest.mark.media
def test_an_adapter_that_was_unloaded_is_missed_by_name(
    llava: Path, folders: dict[str, Path], expected: dict[str, Answer]
) -> None:
    with LLM(model=str(llava), default_mm_loras={"image": str(folders["seen"])}, **SETTINGS) as llm:
        llm.add_lora(LoRARequest("image", 5, str(folders["seen"])))
        assert llm.remove_lora(5)
        with pytest.raises(RequestError, match=r"The adapter 'image' of prompts with such media .* was unloaded"):
            llm.generate([SEEN], SamplingParams(max_tokens=1), use_tqdm=False)
        assert ours(llm, [TEXT]) == [expected["text"]]


@pytest.mark.media
def test_without_adapters_the_argument_has_no_effect(
    llava: Path, folders: dict[str, Path], expected: dict[str, Answer]
) -> None:
    settings = {**SETTINGS, "enable_lora": False}
    with LLM(model=str(llava), default_mm_loras={"image": str(folders["seen"])}, **settings) as llm:
        assert ours(llm, [SEEN]) == [expected["base"]]
    with pytest.raises(ConfigError, match="--default-mm-loras audio: no sounds of the model are served"):
        LLM(model=str(llava), default_mm_loras={"audio": str(folders["seen"])}, **SETTINGS)


@pytest.mark.media
def test_an_asyncio_program_has_the_same_answers(
    llava: Path, folders: dict[str, Path], expected: dict[str, Answer]
) -> None:
    async def run() -> list[list[int]]:
        found = []
        async with AsyncLLM(str(llava), default_mm_loras={"image": str(folders["seen"])}, **SETTINGS) as engine:
            for number, prompt in enumerate((SEEN, TEXT)):
                async for output in engine.generate(prompt, GREEDY, f"request-{number}"):
                    tokens = list(output.outputs[0].token_ids)
                found.append(tokens)
        return found

    assert asyncio.run(run()) == [expected["seen"].token_ids, expected["text"].token_ids]


@pytest.mark.media
def test_a_server_applies_and_lists_it(llava: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    words = ["--model", str(llava), "--dtype", "float32", "--seed", "0", "--enable-lora", "--max-loras", "2"]
    with serving(tmp_path / "plain", *words, "--lora-modules", f"image={folders['seen']}") as server:
        client = client_of(server)
        base = client.models.list().data[0].id
        parts = (text("ab"), shown(1))
        seen = ask(client, *parts, model="image").choices
        plain, spoken = ask(client, *parts).choices, ask(client, text("ab")).choices
    assert seen != plain
    with serving(tmp_path / "log", *words, "--default-mm-loras.image", str(folders["seen"])) as server:
        client = client_of(server)
        assert [row.id for row in client.models.list().data] == [base, "image"]
        assert ask(client, *parts).choices == seen
        assert ask(client, *parts, model="image").choices == seen
        assert ask(client, text("ab")).choices == spoken
        with pytest.raises(openai.NotFoundError):
            ask(client, *parts, model="audio")
