"""Beam searches of several prompts at the same time: each step is a batch of one token per beam.

Owns: how searches begin, the requests of a step, and the distribution of its outputs. Never does: run the engine, or
decide which beams survive (`BeamSearch` does). Called by: `LLM.beam_search`.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.config import ModelConfig
from core.api.errors import RequestError
from core.api.logprobs_mode import shows_logits
from core.api.sampling_params import SamplingParams
from core_frontend.api.outputs import RequestOutput
from core_frontend.library.beam_search import BeamSearch, BeamSearchParams
from core_frontend.prompts.prompt_parser import PromptInput


def begin_search(
    prompt: Sequence[int], params: BeamSearchParams, model: ModelConfig, cache_salt: str | None = None
) -> BeamSearch:
    """Begin the search of a prompt's token ids. Raises RequestError."""
    if shows_logits(model.logprobs_mode):
        raise RequestError(
            f"Beam search adds up log-probabilities, and logprobs_mode is {model.logprobs_mode}; use raw_logprobs.",
            param="params",
        )
    num_tokens = min(params.max_tokens, model.max_model_len - len(prompt))
    search = BeamSearch(prompt, params, num_tokens, model.eos_token_ids, cache_salt)
    most = model.max_logprobs
    if most != -1 and search.num_candidates > most:
        raise RequestError(
            f"beam_width is {params.beam_width}, which needs {search.num_candidates} log-probabilities a token; this "
            f"engine gives at most {most}. Use fewer beams, or raise max_logprobs.",
            param="beam_width",
        )
    return search


def next_step(searches: Sequence[BeamSearch]) -> tuple[list[PromptInput], list[SamplingParams]]:
    """Return the prompts and parameters that extend all beams by one token."""
    prompts: list[PromptInput] = []
    params: list[SamplingParams] = []
    for search in searches:
        wanted = SamplingParams(
            temperature=0.0, max_tokens=1, logprobs=search.num_candidates, detokenize=False, ignore_eos=True
        )
        for beam in search.running:
            prompts.append({"prompt_token_ids": beam.tokens, "cache_salt": search.cache_salt})
            params.append(wanted)
    return prompts, params


def advance_all(searches: Sequence[BeamSearch], outputs: Sequence[RequestOutput]) -> None:
    """Advance all searches by one step. outputs: of the prompts of `next_step`, in order. Raises RequestError."""
    remaining = iter(outputs)
    for search in searches:
        found = []
        for _ in search.running:
            completion = next(remaining).outputs[0]
            if not completion.logprobs:
                raise RequestError(f"The beam search failed: {completion.stop_reason}", status=500)
            found.append(completion.logprobs[0])
        search.advance(found)
