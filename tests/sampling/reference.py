"""Builders for the sampling tests, and a slow reference that shares no code with the sampler."""

import math
from array import array

import torch

from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.sampling import Sampled, Sampler, SampleRow, SequenceSampling
from core.sampling.filters import survivors


def sequence(
    *, prompt=(1, 2, 3), output=(), seed=0, choice=0, stop=(), bad_words=(), allowed_token_ids=(), **params
) -> SequenceSampling:
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
    return SequenceSampling(request, list(output))


def sample_one(logits: torch.Tensor, state: SequenceSampling, drafts=()) -> Sampled:
    return Sampler(len(logits)).sample(logits[None].clone(), [SampleRow(state, list(drafts))])[0]


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
