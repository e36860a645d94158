"""Builders for the sampling tests, and a slow reference that shares no code with the sampler."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from core.api.messages import EngineRequest, TokenLogprobs
from core.api.sampling_params import SamplingParams
from core_runtime.sampling import Sampler, SampleRows, SamplingColumns, SequenceSampling
from core_runtime.sampling.filters import survivors

ROOM = 128
"""Tokens that a sequence may grow by."""


class Running:
    """A sequence as the persistent batch would hold it: its tokens, and what the sampler knows of it."""

    def __init__(self, request: EngineRequest, output: Sequence[int]) -> None:
        self.request = request
        self.num_output = 0
        self.tokens = np.zeros(len(request.prompt_token_ids) + len(output) + ROOM, np.int32)
        self.tokens[: len(request.prompt_token_ids)] = request.prompt_token_ids
        self.state = SequenceSampling(request, self.tokens)
        self.extend(output)

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def output_token_ids(self) -> list[int]:
        return self.state.output(self.num_output).tolist()

    def extend(self, token_ids: Sequence[int]) -> None:
        self.draft(token_ids)
        self.num_output += len(token_ids)

    def draft(self, token_ids: Sequence[int]) -> None:
        """Write tokens behind the output, which they may become."""
        start = len(self.request.prompt_token_ids) + self.num_output
        self.tokens[start : start + len(token_ids)] = token_ids


@dataclass
class Row:
    """The position after prompt, output and `drafts` of a sequence."""

    sequence: Running
    drafts: Sequence[int] = ()


@dataclass
class Result:
    token_id: int
    logprobs: TokenLogprobs | None
    error: str | None


def sequence(
    *, prompt=(1, 2, 3), output=(), seed=0, choice=0, stop=(), bad_words=(), allowed_token_ids=(), mask=None, **params
) -> Running:
    request = EngineRequest(
        request_id="r",
        choice=choice,
        prompt_token_ids=list(prompt),
        params=SamplingParams(max_tokens=1000, **params),
        seed=seed,
        stop_token_ids=list(stop),
        bad_words_ids=[list(word) for word in bad_words],
        allowed_ids=array("q", allowed_token_ids).tobytes(),
    )
    running = Running(request, list(output))
    running.state.mask = mask
    return running


def bound(rows: Sequence[Row]) -> SampleRows:
    """The rows of a step."""
    columns = SamplingColumns(len(rows))
    for slot, row in enumerate(rows):
        row.sequence.draft(row.drafts)
        columns.start(slot, row.sequence.state)
    found = SampleRows(columns, np.zeros(len(rows), np.int64))
    drafted = np.array([len(row.drafts) for row in rows], np.int32)
    indices = np.array([row.sequence.num_output for row in rows], np.int32) + drafted
    found.bind(np.arange(len(rows)), indices, drafted)
    return found


def results(rows: SampleRows) -> list[Result]:
    tokens = rows.tokens.tolist()
    return [Result(token, rows.logprobs.get(i), rows.errors.get(i)) for i, token in enumerate(tokens)]


def draw(sampler: Sampler, logits: torch.Tensor, rows: Sequence[Row]) -> list[Result]:
    step = bound(rows)
    sampler.sample(logits, step)
    return results(step)


def sample_one(logits: torch.Tensor, running: Running, drafts=()) -> Result:
    return draw(Sampler(len(logits)), logits[None].clone(), [Row(running, list(drafts))])[0]


def philox_reference(counter: list[int], key: list[int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def gumbel_reference(seed: int, index: int, choice: int, token: int) -> float:
    word = philox_reference([token >> 2, index, choice, 0], [seed & 0xFFFFFFFF, seed >> 32])[token & 3]
    return -math.log(-math.log1p(-(word + 0.5) / 2**32))


def race_reference(logits: list[float], temperature: float, seed: int, index: int = 0, choice: int = 0) -> int:
    """argmax of logit/T - ln E by the definition, in double precision, over entries that are not -inf."""
    scores = [
        value / temperature + gumbel_reference(seed, index, choice, token) if value > -math.inf else -math.inf
        for token, value in enumerate(logits)
    ]
    return max(range(len(scores)), key=lambda token: (scores[token], -token))


def support(logits: torch.Tensor, **params) -> set[int]:
    """Tokens that the filters leave, of the scaled and shifted logits that the sampler gives them."""
    state = sequence(**params)
    temperature = params.get("temperature", 1.0)
    z = ((logits - logits.max()) / temperature).numpy()
    return set(survivors(z, state.params)[0].tolist())
