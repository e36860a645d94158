"""Answers about media of this engine and of transformers, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from core import LLM, SamplingParams
from core_media.config import media_of
from core_media.processing.image_processor import ImageProcessor

NUM_TOKENS = 32
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, logprobs=5, ignore_eos=True)


@dataclass(frozen=True)
class Answer:
    """prompt, token_ids: ids. logprobs: of the most likely tokens at each place."""

    prompt: list[int]
    token_ids: list[int]
    logprobs: list[dict[int, float]]


def prompt_of(text: str, images: Sequence[Image.Image]) -> dict[str, Any]:
    return {"prompt": text, "multi_modal_data": {"image": list(images)}}


def ours(llm: LLM, prompts: Sequence[dict[str, Any]], params: SamplingParams = GREEDY) -> list[Answer]:
    answers = []
    for output in llm.generate(list(prompts), params, use_tqdm=False):
        [completion] = output.outputs
        scores = [{token: each.logprob for token, each in place.items()} for place in completion.logprobs or ()]
        answers.append(Answer(list(output.prompt_token_ids), list(completion.token_ids), scores))
    return answers


class Reference:
    """transformers' model and processor of a checkpoint."""

    def __init__(self, llm: LLM, directory: Path) -> None:
        config = media_of(llm._config)
        assert config is not None
        own = msgspec.structs.replace(config, model=str(directory), projector={})
        self._processor = ImageProcessor(own).processor  # without torchvision, as the engine's
        # Others ignore the soft caps of Gemma 2, and show later tokens to PaliGemma's prompts of text.
        attention = "eager"
        model = AutoModelForImageTextToText.from_pretrained(
            directory, dtype=torch.float32, attn_implementation=attention
        )
        self._model = model.eval()

    def answer(self, text: str, images: Sequence[Image.Image]) -> Answer:
        if images:
            return self.answered(
                self._processor(text=text, images=[list(images)], return_tensors="pt")
            )  # one conversation
        # PaliGemma's processor takes no text alone
        return self.answered(self._processor.tokenizer(text, return_tensors="pt", return_token_type_ids=False))

    def vector(self, text: str, images: Sequence[Image.Image]) -> torch.Tensor:
        """Return the last hidden state of a prompt at its last token, of length 1."""
        if images:
            given = self._processor(text=text, images=[list(images)], return_tensors="pt")
        else:
            given = self._processor.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        with torch.inference_mode():
            made = self._model.model(**given).last_hidden_state[0, -1]
        return torch.nn.functional.normalize(made, dim=0)

    def answered(self, given: Any) -> Answer:
        """given: what a processor made of a prompt."""
        length = given["input_ids"].shape[1]
        made = self._model.generate(
            **given, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None,
            pad_token_id=0, output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        scores = [torch.log_softmax(row[0].float(), -1).tolist() for row in made.logits]
        tables = [dict(enumerate(row)) for row in scores]
        return Answer(given["input_ids"][0].tolist(), made.sequences[0, length:].tolist(), tables)


def assert_same(found: Answer, expected: Answer) -> None:
    assert found.prompt == expected.prompt
    assert found.token_ids == expected.token_ids
    for place, table in enumerate(found.logprobs):
        for token, value in table.items():
            assert abs(value - expected.logprobs[place][token]) < 1e-4, (place, token)


def crowded(expected: Sequence[Answer], more: int = 0) -> dict[str, int]:
    """Settings of an engine that has room for the prompts of these answers, in chunks, and none for the answers.

    more: blocks, for a model whose layers with windows have blocks of their own.
    """
    return {
        "num_gpu_blocks_override": sum(-(-len(answer.prompt) // 16) for answer in expected) + 3 + more,
        "max_num_batched_tokens": 29,
        "max_num_seqs": 4,
        "max_model_len": max(len(answer.prompt) for answer in expected) + len(expected[0].token_ids),
    }
