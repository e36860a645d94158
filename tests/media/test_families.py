"""Every family whose pictures are served: the prompts, tokens and logits of transformers."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.api.errors import ConfigError, RequestError
from core_media.families import FAMILIES, THREE_POSITIONS, TWO_SIDED
from tests.media.checkpoints import SAVE, file_of, picture, save_paligemma
from tests.media.comparison import Reference, assert_same, ours, prompt_of

SETTINGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "block_size": 16, "seed": 0}
QUICK = ("qwen3_vl",)
"""The family whose pictures need the most of the engine."""


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.media) for kind in sorted(SAVE)]
)
def test_a_family_answers_as_transformers_does(kind: str, tmp_path: Path) -> None:
    SAVE[kind](tmp_path)
    compare(kind, tmp_path)


@pytest.mark.media
def test_paligemma_2_answers_as_transformers_does(tmp_path: Path) -> None:
    """Answers exceed the windows of some layers; prompts that do are refused."""
    save_paligemma(tmp_path, "gemma2")
    compare("paligemma", tmp_path)
    prompt = prompt_of("<image>" + "a" * 15, [picture()])
    with (
        LLM(model=str(tmp_path), **SETTINGS) as llm,
        pytest.raises(RequestError, match=r"21 tokens .* windows hold 20"),
    ):
        llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)


@pytest.mark.media
def test_in_a_conversation_paligemmas_text_begins_behind_the_last_picture(tmp_path: Path) -> None:
    save_paligemma(tmp_path)
    url = f"data:image/png;base64,{base64.b64encode(file_of(picture())).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "ab <image>"}]
    with LLM(model=str(tmp_path), **SETTINGS) as llm:
        [found] = llm.chat([{"role": "user", "content": parts}], SamplingParams(max_tokens=1), use_tqdm=False)
        assert found.prompt == "<|user|>" + "<image>" * 4 + "<s>ab <image></s><|assistant|>\n"
        token = llm.get_tokenizer().convert_tokens_to_ids("<image>")
        assert list(found.prompt_token_ids).count(token) == 4  # what a user writes stays text


def compare(kind: str, checkpoint: Path) -> None:
    """Prompts with no, one, two and three pictures, in company and in chunks, beside transformers."""
    mark = FAMILIES[kind]
    # With three positions, `generate` of transformers counts on from the last row of a picture that ends a prompt, where its
    # own `rope_deltas`, as its forward pass without a cache, goes on behind the picture.
    end = "z" if kind in THREE_POSITIONS else ""
    prompts = [
        ("ab", []),
        (f"ab{mark}cd", [picture(0, 50, 40)]),
        (f"{mark}ab{mark}{end}", [picture(1, 28, 90), picture(2, 129, 61)]),
        (f"a{mark}b{mark}c{mark}{end}", [picture(3, 35, 30), picture(4, 64, 64), picture(5, 200, 20)]),
    ]
    room = 24 if TWO_SIDED.get(kind) == "prompt" else 16
    with LLM(model=str(checkpoint), max_num_batched_tokens=room, max_num_seqs=4, **SETTINGS) as llm:
        reference = Reference(llm, checkpoint)
        given = [prompt_of(text, images) if images else {"prompt": text} for text, images in prompts]
        for found, (text, images) in zip(ours(llm, given), prompts, strict=True):
            assert_same(found, reference.answer(text, images))


@pytest.mark.media
def test_a_picture_that_no_step_could_compute_is_refused_with_the_argument(tmp_path: Path) -> None:
    SAVE["gemma3"](tmp_path)
    prompt = prompt_of("ab<start_of_image>c", [picture()])
    with LLM(model=str(tmp_path), max_num_batched_tokens=6, max_num_seqs=4, **SETTINGS) as llm:
        with pytest.raises(RequestError, match=r"4 tokens .* room for 3\. Raise --max-num-batched-tokens by 1"):
            llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
        assert llm.generate(["abc"], SamplingParams(max_tokens=1), use_tqdm=False)
    with LLM(model=str(tmp_path), max_num_batched_tokens=7, max_num_seqs=4, **SETTINGS) as llm:
        assert llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)


@pytest.mark.media
def test_a_backend_without_spans_is_refused_by_name(tmp_path: Path) -> None:
    SAVE["gemma3"](tmp_path)
    with pytest.raises(ConfigError, match="--language-model-only"):
        LLM(model=str(tmp_path), attention_backend="flex", **SETTINGS)


@pytest.mark.media
def test_torch_attention_sees_spans_as_well(tmp_path: Path) -> None:
    SAVE["gemma3"](tmp_path)
    text, images = "ab<start_of_image>c<start_of_image>", [picture(1), picture(2)]
    with LLM(model=str(tmp_path), attention_backend="torch_sdpa", **SETTINGS) as llm:
        [found] = ours(llm, [prompt_of(text, images)])
        assert_same(found, Reference(llm, tmp_path).answer(text, images))


@pytest.mark.media
def test_an_older_configuration_of_qwen_has_pictures_too(tmp_path: Path) -> None:
    """In which the text's keys stand beside those of the whole."""
    SAVE["qwen2_vl"](tmp_path)
    text, images = "ab<|image_pad|>cd", [picture(3, 60, 90)]
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    answers = []
    inner = config.pop("text_config")
    for written in ({**config, "text_config": inner}, {**inner, **config}):
        file.write_text(json.dumps(written))
        with LLM(model=str(tmp_path), **SETTINGS) as llm:
            answers += ours(llm, [prompt_of(text, images)])
    assert answers[0] == answers[1]


@pytest.mark.media
def test_a_configuration_without_sections_serves_the_text_alone(tmp_path: Path) -> None:
    SAVE["qwen2_vl"](tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    del config["text_config"]["rope_parameters"]["mrope_section"]
    file.write_text(json.dumps(config))
    with LLM(model=str(tmp_path), **SETTINGS) as llm:
        with pytest.raises(RequestError, match="no mrope_section"):
            llm.generate([prompt_of("ab<|image_pad|>cd", [picture()])], SamplingParams(max_tokens=1), use_tqdm=False)
        assert llm.generate(["abc"], SamplingParams(max_tokens=1), use_tqdm=False)
