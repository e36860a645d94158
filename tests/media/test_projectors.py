"""Pictures of GGUF models with projector files: the prompts, tokens and logits of transformers with the same weights."""

import json
from pathlib import Path
from typing import Any

import pytest

from core import LLM
from tests.media.checkpoints import SAVE, picture
from tests.media.comparison import Reference, assert_same, ours, prompt_of
from tests.media.projector_files import write_pair

SETTINGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "block_size": 16, "seed": 0}
MARKS = {
    "gemma3": "<start_of_image>", "idefics3": "<image>", "llava": "<image>", "mistral3": "[IMG]",
    "qwen2_vl": "<|image_pad|>", "qwen2_5_vl": "<|image_pad|>",
}  # fmt: skip
QUICK = ("gemma3",)


def saved(kind: str, directory: Path) -> Path:
    """A checkpoint whose scale of scores is the one that GGUF files imply."""
    SAVE[kind](directory)
    if kind == "gemma3":
        file = directory / "config.json"
        config = json.loads(file.read_text())
        config["text_config"]["query_pre_attn_scalar"] = config["text_config"]["head_dim"]
        file.write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.media) for kind in sorted(MARKS)]
)
def test_a_projector_beside_the_model_gives_it_pictures_as_transformers_sees_them(kind: str, tmp_path: Path) -> None:
    checkpoint = saved(kind, tmp_path / "hf")
    text, _ = write_pair(checkpoint, tmp_path / "gguf", kind)
    mark, end = MARKS[kind], "z" if kind.startswith("qwen") else ""
    prompts = [
        ("ab", []),
        (f"ab{mark}cd", [picture(0, 50, 40)]),
        (f"{mark}ab{mark}{end}", [picture(1, 28, 90), picture(2, 129, 61)]),
    ]
    with LLM(model=str(text), max_num_batched_tokens=16, max_num_seqs=4, **SETTINGS) as llm:
        reference = Reference(llm, checkpoint)
        given = [prompt_of(text, images) if images else {"prompt": text} for text, images in prompts]
        for found, (text, images) in zip(ours(llm, given), prompts, strict=True):
            assert_same(found, reference.answer(text, images))
