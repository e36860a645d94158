"""Prompts with pictures that are pooled: the vectors of transformers, in company and in chunks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, PoolingParams
from core.api.errors import RequestError
from tests.media.checkpoints import SAVE, picture
from tests.media.comparison import Reference, prompt_of

KINDS = [pytest.param("gemma3"), *(pytest.param(kind, marks=pytest.mark.media) for kind in ("qwen2_vl", "qwen3_vl"))]


def opened(directory: Path, **options: Any) -> LLM:
    return LLM(
        model=str(directory), dtype="float32", runner="pooling", convert="embed", max_model_len=512, seed=0,
        **{"limit_mm_per_prompt": {"image": 2}, **options},
    )  # fmt: skip


def vectors(llm: LLM, prompts: list[dict[str, Any]]) -> list[list[float]]:
    return [output.outputs.embedding for output in llm.embed(prompts, use_tqdm=False)]


def shown(llm: LLM, kind: str) -> list[dict[str, Any]]:
    placeholder = placeholders(kind)
    return [
        prompt_of(f"a {placeholder} b c", [picture(1)]),
        prompt_of("a b c", []),
        prompt_of(f"a {placeholder} b {placeholder} c", [picture(2), picture(1)]),
    ]


def placeholders(kind: str) -> str:
    return "<start_of_image>" if kind == "gemma3" else "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_is_pooled_as_by_transformers(kind: str, tmp_path: Path) -> None:
    directory = SAVE[kind](tmp_path / "model")
    with opened(directory) as llm:
        prompts = shown(llm, kind)
        reference = Reference(llm, directory)
        alone = [vectors(llm, [prompt])[0] for prompt in prompts]
        assert vectors(llm, prompts) == alone
        for prompt, vector in zip(prompts, alone, strict=True):
            expected = reference.vector(prompt["prompt"], prompt["multi_modal_data"]["image"])
            torch.testing.assert_close(torch.tensor(vector), expected, rtol=0, atol=1e-4)
        other = vectors(llm, [prompt_of(prompts[0]["prompt"], [picture(3)])])[0]
        assert other != alone[0]
        with pytest.raises(RequestError, match="never cut"):
            llm.embed([prompts[0]], pooling_params=PoolingParams(truncate_prompt_tokens=4), use_tqdm=False)
    if kind != "gemma3":
        with opened(directory, enable_chunked_prefill=True, max_num_batched_tokens=16, max_num_seqs=4) as llm:
            assert vectors(llm, prompts) == alone


def test_towers_of_a_model_that_pools_are_loaded_where_asked_for(tmp_path: Path) -> None:
    directory = SAVE["gemma3"](tmp_path / "model")
    with opened(directory, limit_mm_per_prompt={}) as llm:
        assert llm._config.media is None
        with pytest.raises(RequestError, match="where --limit-mm-per-prompt says how many"):
            llm.embed([prompt_of("a <start_of_image>", [picture(1)])], use_tqdm=False)
        assert vectors(llm, [{"prompt": "a b c"}])
