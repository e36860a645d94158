"""Arrays that grow: each is taken to more than twice its first size, in answers that a user asks for."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from sampling.reference import Row, draw, sequence
from transformers import AutoModelForCausalLM, RepetitionPenaltyLogitsProcessor

from core import LLM, SamplingParams
from core_runtime.sampling import Sampler
from core_runtime.sampling.changes.adjusted import ADJUSTED_ROWS
from core_runtime.sampling.changes.counts import TokenCounts

PROMPT = [5, 9, 5]
NUM_TOKENS = 200
PENALTIES = [
    {"frequency_penalty": 1.5},
    {"presence_penalty": -0.7, "frequency_penalty": 0.9},
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.5},
]


@pytest.mark.parametrize("num_prompt", [0, 1, 2, 30])
@pytest.mark.parametrize("at_once", [1, 3, 500])
def test_counts_grow_with_the_distinct_tokens_of_an_output(num_prompt: int, at_once: int) -> None:
    prompt = list(range(num_prompt))
    output = [(7 * place) % 401 for place in range(500)]
    counts = TokenCounts(prompt)
    for start in range(0, len(output), at_once):
        counts.add(output[start : start + at_once])
    ids, values = counts.arrays()
    expected = dict.fromkeys(prompt, 0) | Counter(output)
    assert dict(zip(ids.tolist(), values.tolist(), strict=True)) == expected


def test_long_answers_with_penalties_are_what_the_definition_says(tiny_llama: Path) -> None:
    """Each token is the best one after the penalties of all tokens before it, computed from transformers' logits."""
    llm = LLM(str(tiny_llama), dtype="float32", max_model_len=256, max_num_seqs=4, kv_cache_memory_bytes=1 << 26)
    params = [SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True, **one) for one in PENALTIES]
    outputs = llm.generate([{"prompt_token_ids": PROMPT}] * len(PENALTIES), params, use_tqdm=False)
    llm.close()
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    sizes: list[int] = []
    for penalties, output in zip(PENALTIES, outputs, strict=True):
        tokens = output.outputs[0].token_ids
        assert len(tokens) == NUM_TOKENS
        sizes.append(len(set(tokens)))
        with torch.inference_mode():
            logits = model(torch.tensor([PROMPT + tokens[:-1]])).logits[0, len(PROMPT) - 1 :]
        repetition = RepetitionPenaltyLogitsProcessor(penalties.get("repetition_penalty", 1.0))
        for index, token in enumerate(tokens):
            before = torch.tensor([PROMPT + tokens[:index]])
            expected = repetition(before, logits[index : index + 1])[0]
            counted = torch.bincount(torch.tensor(tokens[:index], dtype=torch.long), minlength=len(expected))
            expected -= penalties.get("frequency_penalty", 0.0) * counted
            expected -= penalties.get("presence_penalty", 0.0) * (counted > 0)
            assert expected[token] >= expected.max() - 1e-3, (penalties, index)
    assert max(sizes) > 2 * (2 * len(set(PROMPT)) + 64), "no answer made the counts grow twice"


class EvenTokens:
    """A token mask: even ids only."""

    must_end = False

    def __init__(self, vocab_size: int) -> None:
        self.words = np.full((vocab_size + 31) // 32, 0x55555555, np.int32)

    def __call__(self, output: np.ndarray, num_drafted: int) -> np.ndarray:
        return self.words

    def allows(self, output: np.ndarray, num_drafted: int, token_id: int) -> bool:
        return token_id % 2 == 0


@pytest.mark.parametrize("special", ["masks", "penalties", "both"])
def test_batches_that_grow_draw_what_their_rows_draw_alone(special: str) -> None:
    """One sampler, ever more rows: its own copies of logits and masks grow, and shrink again."""
    vocab_size = 77
    sampler = Sampler(vocab_size)
    made = torch.Generator().manual_seed(0)
    for count in (1, 2, 5, ADJUSTED_ROWS + 3, 3 * ADJUSTED_ROWS, 2, 7 * ADJUSTED_ROWS):
        logits = torch.randn(count, vocab_size, generator=made) * 4
        rows = []
        for place in range(count):
            options = {"seed": place, "output": [place % vocab_size, 3], "temperature": 0.9}
            if special != "masks":
                options["frequency_penalty"] = 1.5
            mask = None if special == "penalties" else EvenTokens(vocab_size)
            rows.append(Row(sequence(mask=mask, **options)))
        together = [result.token_id for result in draw(sampler, logits, rows)]
        alone = [draw(Sampler(vocab_size), logits[i : i + 1], rows[i : i + 1])[0].token_id for i in range(count)]
        assert together == alone
        assert special == "penalties" or not any(token % 2 for token in together)
