"""What a draft learns from: a model's own answers, and what it thought at each of their tokens.

Owns: asking the model, and listening to it. Never does: train. Called by: `train_draft.py`.

Answers come from the engine as it serves. For the hidden states they are read again with transformers' own modules, which the
engine runs on its kernels, so that hooks of torch hear every layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from core import LLM, SamplingParams

EVERY = 3
"""Of so many places of an answer, one says which tokens are likely."""


@dataclass(slots=True)
class Answer:
    """One answer of the model.

    tokens: of prompt and answer.
    first: place of the answer's first token.
    temperature: 0 or 1.
    seed: of its sampling, and its number.
    """

    tokens: list[int]
    first: int
    temperature: float
    seed: int


@dataclass(slots=True)
class Lesson:
    """What the model thought at an answer's T tokens.

    answer: with its prompt.
    taps: bfloat16 [T, 3H], what enters three of the layers.
    last: bfloat16 [T, H], what enters the head.
    """

    answer: Answer
    taps: Tensor
    last: Tensor


def write_answers(model: str | None, prompts: Sequence[str], max_tokens: int) -> list[Answer]:
    """Every other answer is greedy, and the others are drawn at temperature 1."""
    temperatures = [float(number % 2) for number in range(len(prompts))]
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
        for seed, temperature in enumerate(temperatures)
    ]
    conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
    with LLM(model=model, max_model_len=max_tokens + 256, max_num_seqs=64) as llm:
        outputs = llm.chat(conversations, params)
    answers: list[Answer] = []
    for seed, (output, temperature) in enumerate(zip(outputs, temperatures, strict=True)):
        prompt = list(output.prompt_token_ids)
        tokens = prompt + list(output.outputs[0].token_ids)
        answers.append(Answer(tokens, len(prompt), temperature, seed))
    return [answer for answer in answers if len(answer.tokens) > answer.first + 1]


def read_states(model: str | None, answers: Sequence[Answer], layers: Sequence[int]) -> list[Lesson]:
    """Lessons with what enters the layers of these numbers."""
    longest = max(len(answer.tokens) for answer in answers)
    one_token = SamplingParams(temperature=0, max_tokens=1)
    lessons: list[Lesson] = []
    with LLM(
        model=model,
        model_impl="transformers",
        max_model_len=longest + 8,
        max_num_batched_tokens=longest + 8,
        max_num_seqs=1,
        enable_prefix_caching=False,
    ) as llm:
        for answer in track(answers, "reading hidden states"):
            with _listening() as (layer_outputs, last):
                llm.generate({"prompt_token_ids": answer.tokens}, one_token, use_tqdm=False)
            entering = [layer_outputs[layer - 1][: len(answer.tokens)] for layer in layers]
            taps = torch.cat(entering, dim=1)
            lessons.append(Lesson(answer, taps.bfloat16(), last[0][: len(answer.tokens)].bfloat16()))
    return lessons


@torch.inference_mode()
def likely_tokens(lessons: Sequence[Lesson], head: Tensor, count: int, always: Sequence[int]) -> Tensor:
    """Rising ids of the tokens to which the model gives most in its answers, int64 [count], those of `always` among them.

    What it gives is known for every token, also for those that it has not happened to draw. head: [tokens, H].
    """
    total = torch.zeros(len(head))
    narrow = head.bfloat16().T
    for lesson in track(lessons, "choosing tokens"):
        states = lesson.last[lesson.answer.first - 1 : -1 : EVERY]
        logits = states @ narrow
        total += logits.float().softmax(dim=1).sum(dim=0)
    total[list(always)] = torch.inf
    return total.topk(min(count, len(head))).indices.sort().values


@contextmanager
def _listening() -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """What layers, and what the whole body gives, [T, H] each, while this lasts."""
    of_layers: list[Tensor] = []
    of_body: list[Tensor] = []

    def listen(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(module, GradientCheckpointingLayer):
            states = output[0] if isinstance(output, tuple) else output
            of_layers.append(states[0])
        elif isinstance(module, PreTrainedModel) and isinstance(output, BaseModelOutputWithPast):
            of_body.append(output.last_hidden_state[0])

    handle = nn.modules.module.register_module_forward_hook(listen)
    try:
        yield of_layers, of_body
    finally:
        handle.remove()
