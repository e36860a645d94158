"""Every family whose pictures are served: the prompts, tokens and logits of transformers."""

from pathlib import Path

import pytest

from core import LLM
from core_media.families import FAMILIES
from tests.media.checkpoints import QWEN, SAVE, picture
from tests.media.comparison import Reference, assert_same, ours, prompt_of


@pytest.mark.media
@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_a_family_answers_as_transformers_does(kind: str, tmp_path: Path) -> None:
    SAVE[kind](tmp_path)
    mark = FAMILIES[kind]
    # With three positions, `generate` of transformers counts on from the last row of a picture that ends a prompt, where its
    # own `rope_deltas`, as its forward pass without a cache, goes on behind the picture.
    end = "z" if kind in QWEN else ""
    prompts = [
        ("ab", []),
        (f"ab{mark}cd", [picture(0, 50, 40)]),
        (f"{mark}ab{mark}{end}", [picture(1, 28, 90), picture(2, 129, 61)]),
        (f"a{mark}b{mark}c{mark}{end}", [picture(3, 35, 30), picture(4, 64, 64), picture(5, 200, 20)]),
    ]
    settings = {"dtype": "float32", "max_model_len": 1024, "block_size": 16, "seed": 0}
    with LLM(model=str(tmp_path), max_num_batched_tokens=16, max_num_seqs=4, **settings) as llm:
        reference = Reference(llm, tmp_path)
        given = [prompt_of(text, images) if images else {"prompt": text} for text, images in prompts]
        for found, (text, images) in zip(ours(llm, given), prompts, strict=True):  # in company, and in chunks
            assert_same(found, reference.answer(text, images))
