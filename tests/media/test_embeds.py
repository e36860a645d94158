"""Rows of pictures in requests, as transformers' tower computes them: the answers of the pictures, and bad ones."""

import base64
import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save
from transformers import AutoModelForImageTextToText

from core import LLM, SamplingParams
from core.api.errors import RequestError
from core_media.config import MediaConfig
from core_media.families import AROUND_ROWS, FAMILIES, SOUNDS
from core_media.features import pack
from core_media.processing.image_processor import ImageProcessor
from core_media.processing.worker import Worker
from core_media.reading.embeds import embedded
from core_media.reading.parts import take_media
from core_media.reading.rows import Given
from core_media.reading.source import MediaSource
from core_media.serving.tower import Tower
from tests.apis.test_real_server import client_of, serving
from tests.media.checkpoints import SAVE, picture
from tests.media.comparison import GREEDY, crowded, ours, prompt_of
from tests.media.heard import SAVE_HEARD, wav
from tests.media.omni import SAVE_OMNI
from tests.media.test_server import ask, processes, text

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 512,
    "block_size": 16,
    "seed": 0,
    "enable_mm_embeds": True,
}
SIZE = 64
CONFIG = MediaConfig(
    model="", model_type="qwen2_vl", placeholder="<image>", token_id=1, limits={"image": 2}, row_size=SIZE, merged=2,
    around_rows={"image": ("[", "]")},
)  # fmt: skip


def of_torch(value: object) -> str:
    stream = io.BytesIO()
    torch.save(value, stream)
    return base64.b64encode(stream.getvalue()).decode()


def of_safetensors(value: torch.Tensor) -> str:
    return base64.b64encode(save({"rows": value.contiguous()})).decode()


def rows_of(kind: str, checkpoint: Path, media: MediaConfig, seed: int) -> dict[str, torch.Tensor]:
    """What transformers' tower makes of a picture: `image_embeds`, and `image_grid_thw` where there is one."""
    processor = ImageProcessor(media).processor
    given = processor(text=FAMILIES[kind], images=[[picture(seed)]], return_tensors="pt")
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval().model
    names = [name for name in ("pixel_values", "image_grid_thw") if name in given]
    with torch.inference_mode():
        made = model.get_image_features(**{name: given[name] for name in names}, return_dict=True)
    parts = [made.pooler_output, *getattr(made, "deepstack_features", ())]
    joined = [torch.cat([each.reshape(-1, each.shape[-1]) for each in part]) for part in parts]
    return {"image_embeds": torch.cat(joined, 1), **{name: given[name] for name in names if name == "image_grid_thw"}}


@pytest.mark.media
@pytest.mark.parametrize("kind", ["gemma3", "internvl", "llava", "paligemma", "qwen3_vl"])
def test_rows_have_the_answers_of_their_picture_in_all_circumstances(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    checkpoint = request.getfixturevalue("llava") if kind == "llava" else SAVE[kind](tmp_path)
    line = f"ab{FAMILIES[kind]}cd"
    with LLM(model=str(checkpoint), **SETTINGS) as llm:
        media = llm._config.media
        rows = [rows_of(kind, checkpoint, media, seed) for seed in (1, 2)]
        given = [{"prompt": line, "multi_modal_data": {"image": each}} for each in rows]
        expected = ours(llm, [prompt_of(line, [picture(1)]), prompt_of(line, [picture(2)])])
        assert expected[0].logprobs != expected[1].logprobs
        found = [ours(llm, [each])[0] for each in given]
        for one, other in zip(found, expected, strict=True):
            assert (one.prompt, one.token_ids) == (other.prompt, other.token_ids)
            for place, table in enumerate(one.logprobs):
                assert table == pytest.approx(other.logprobs[place], abs=1e-5)
        if kind == "llava":
            [as_tensor] = ours(llm, [{"prompt": line, "multi_modal_data": {"image": rows[0]["image_embeds"]}}])
            assert as_tensor == found[0]
    with LLM(model=str(checkpoint), **{**SETTINGS, **crowded(expected, 6)}) as llm:
        for _ in range(2):
            assert ours(llm, [given[0], given[1], {"prompt": "abc"}])[:2] == found


@pytest.mark.media
@pytest.mark.parametrize("kind", ["gemma3n", "gemma4", "granite_speech", "qwen2_5_omni_thinker", "qwen2_audio"])
def test_rows_of_sounds_have_the_answers_of_their_sound(kind: str, tmp_path: Path) -> None:
    """The rows are those of the engine's own tower: `test_sounds_in_prompts` compares them with transformers."""
    {**SAVE_HEARD, **SAVE_OMNI}[kind](tmp_path)
    line = f"ab{SOUNDS[kind]}cd"
    with LLM(model=str(tmp_path), **SETTINGS) as llm:
        media = llm._config.media
        made = Worker(media).run("audio", wav(1))
        rows = np.frombuffer(Tower(llm._config, media).rows(pack(made.arrays)), np.float32).reshape(-1, SIZE)
        given = {"prompt": line, "multi_modal_data": {"audio": rows / np.float32(media.row_scale)}}
        [expected] = ours(llm, [{"prompt": line, "multi_modal_data": {"audio": wav(1)}}])
        [found] = ours(llm, [given])
        assert (found.prompt, found.token_ids) == (expected.prompt, expected.token_ids)


@pytest.fixture(scope="module")
def llm(llava: Path) -> Iterator[LLM]:
    with LLM(model=str(llava), **SETTINGS) as running:
        yield running


def test_parts_of_conversations_hold_files_of_both_formats(llm: LLM) -> None:
    rows = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(0))

    def answer(given: object) -> list[int]:
        parts = [{"type": "text", "text": "ab"}, {"type": "image_embeds", "image_embeds": given}]
        [found] = llm.chat([{"role": "user", "content": parts}], GREEDY, use_tqdm=False)
        return list(found.outputs[0].token_ids)

    expected = answer(of_torch(rows))
    assert answer(of_safetensors(rows)) == answer({"image_embeds": of_torch(rows[None])}) == expected
    assert answer(of_torch(-rows)) != expected


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


def grid(*numbers: int) -> str:
    return of_torch(torch.tensor([numbers]))


GOOD = torch.ones(6, SIZE)
BAD: list[tuple[object, object, str]] = [
    ("@@", [1, 4, 6], "no base64"),
    (base64.b64encode(b"abc").decode(), [1, 4, 6], "the tensor"),
    (base64.b64encode(pickle.dumps(Harmful())).decode(), [1, 4, 6], "the tensor"),
    (of_torch(Harmful()), [1, 4, 6], "the tensor"),
    (of_torch(torch.ones(6, SIZE - 1)), [1, 4, 6], r"shape \(6, 63\); expected \(rows, 64\)"),
    (of_torch(torch.ones(0, SIZE)), [1, 4, 6], "with 1 to"),
    (of_torch(torch.ones(2, 6, SIZE)), [1, 4, 6], "expected"),
    (of_torch(torch.ones(6, SIZE, dtype=torch.int64)), [1, 4, 6], "I64"),
    (of_torch(torch.ones(1, SIZE).expand(1 << 20, SIZE)), [1, 2048, 2048], "contiguous"),
    (of_safetensors(GOOD * torch.nan), [1, 4, 6], "NaN or infinity"),
    (of_safetensors(GOOD * 1e39), [1, 4, 6], "NaN or infinity"),
    (of_safetensors(GOOD), None, "image_grid_thw is missing"),
    (of_safetensors(GOOD), [1, 4], "expected .time, height, width"),
    (of_safetensors(GOOD), [1, 4, 5], "that 2 divides"),
    (of_safetensors(GOOD), [1, -4, -6], "that 2 divides"),
    (of_safetensors(GOOD), [1, 4, 4], r"has 4 rows, and the tensor 6"),
    (of_safetensors(GOOD), [1, 4, "6"], "expected .time, height, width"),
    (of_safetensors(GOOD), grid(1, 4), "expected three numbers"),
    (of_safetensors(GOOD), of_torch(torch.ones(3)), "expected three numbers"),
    (of_safetensors(GOOD), "@@", "no base64"),
]


@pytest.mark.parametrize(("tensor", "given", "sentence"), BAD)
def test_bad_rows_are_refused_with_what_is_expected(
    tensor: str, given: object, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=sentence):
        embedded(Given(tensor, given), "image", "<row>", CONFIG)
    assert not list(tmp_path.iterdir())


def test_rows_of_every_number_are_read_and_known_by_their_bytes() -> None:
    made = [
        embedded(Given(tensor, shape), "image", "<row>", CONFIG)
        for tensor in (of_torch(GOOD), of_safetensors(GOOD.half()), of_torch(GOOD.bfloat16()), GOOD.double().numpy())
        for shape in ([1, 4, 6], [[1, 4, 6]], grid(1, 4, 6), np.array([[1, 4, 6]]))
    ]
    assert len({each.digest for each in made}) == 1
    assert (made[0].text, made[0].grid, len(made[0].rows)) == ("[" + "<row>" * 6 + "]", [1, 2, 3], 6 * SIZE * 4)
    turned = embedded(Given(of_torch(GOOD), [1, 6, 4]), "image", "<row>", CONFIG)
    assert turned.digest != made[0].digest


def test_rows_cross_the_processes_that_prepare_requests() -> None:
    rows = {"image_embeds": of_torch(GOOD), "image_grid_thw": [1, 4, 6]}
    messages = [{"role": "user", "content": [{"type": "image_embeds", "image_embeds": rows}]}]
    sources = take_media(messages, CONFIG, "")
    [crossed] = msgspec.msgpack.decode(msgspec.msgpack.encode(sources), type=list[MediaSource])
    assert crossed.embeds is not None
    assert embedded(crossed.embeds, crossed.modality, "<row>", CONFIG).grid == [1, 2, 3]


def test_servers_that_take_none_say_so(llm: LLM, llava: Path) -> None:
    rows = {"prompt": "ab<image>c", "multi_modal_data": {"image": torch.ones(4, SIZE)}}
    with LLM(model=str(llava), **{**SETTINGS, "enable_mm_embeds": False}) as plain:
        with pytest.raises(RequestError, match=r"multi_modal_data\['image'\]\[0\]: .*--enable-mm-embeds"):
            ours(plain, [rows])
        part = {"type": "image_embeds", "image_embeds": of_torch(torch.ones(4, SIZE))}
        with pytest.raises(RequestError, match=r"content\[0\]: .*--enable-mm-embeds"):
            plain.chat([{"role": "user", "content": [part]}], SamplingParams(max_tokens=1), use_tqdm=False)
    named = {"image_embeds": torch.ones(4, SIZE), "grid": [1, 4, 4]}
    with pytest.raises(RequestError, match="has the key 'grid'"):
        ours(llm, [{**rows, "multi_modal_data": {"image": named}}])
    with pytest.raises(RequestError, match=r"expected a PIL image, an array \[height, width, 3\] of uint8"):
        ours(llm, [{**rows, "multi_modal_data": {"image": np.ones((4, 4, 3))}}])
    with pytest.raises(RequestError, match="mm_processor_kwargs concerns pictures"):
        ours(llm, [{**rows, "mm_processor_kwargs": {"do_resize": False}}])


def test_families_without_a_row_are_those_whose_processor_writes_between_rows() -> None:
    without = {kind for kind in {*FAMILIES, *SOUNDS} if kind not in AROUND_ROWS}
    assert without == {"idefics3", "smolvlm", "mistral3", "lfm2_vl"}


@pytest.mark.media
def test_a_server_answers_rows_and_goes_on_after_the_death_of_its_engine(llava: Path, tmp_path: Path) -> None:
    part = {
        "type": "image_embeds",
        "image_embeds": of_torch(torch.randn(4, SIZE, generator=torch.Generator().manual_seed(0))),
    }
    arguments = ("--model", str(llava), "--dtype", "float32", "--seed", "0", "--enable-mm-embeds")
    with serving(tmp_path / "log", *arguments) as server:
        client = client_of(server)
        expected = ask(client, text("ab"), part, max_tokens=200).choices[0].token_ids
        tokens: list[int] = []
        for number, chunk in enumerate(ask(client, text("ab"), part, stream=True, max_tokens=200)):
            for choice in chunk.choices:
                tokens += getattr(choice, "token_ids", None) or []
            if number == 3:
                [engine] = processes(server, "core.engine") or processes(server, "engine_main")
                engine.kill()
        assert tokens == expected
