"""Beam search of a request over HTTP: `use_beam_search`, with `n` beams and `length_penalty`, as in vLLM.

Owns: the run of one prompt's search on the engine. Never does: decide which beams survive
(`core_frontend.library.beam_search` does). Called by: the run of a request's prompts, and the engine's `generate` with its
observers.

Each step continues every beam by one token, as a request of its own whose prefix is cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from core.api.errors import RequestError
from core.api.messages import EngineOutput
from core.api.sampling_params import SamplingParams
from core_apis.engine_protocol import ServingEngine
from core_apis.protocol.beam_fields import DEFAULT_PENALTY
from core_frontend.api.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from core_frontend.completion_state import CompletionState
from core_frontend.library.beam_batch import begin_search, next_step
from core_frontend.library.beam_search import BeamSearch, BeamSearchParams, BeamSearchSequence
from core_frontend.request_terms import RequestTerms


def beams_of(body: Any, params: Any, max_model_len: int) -> BeamSearchParams | None:
    """Return the parameters of a request's search; None: it asks for none. Raises RequestError.

    params: the sampling parameters that its body has become.
    """
    if not getattr(body, "use_beam_search", None):
        return None
    return BeamSearchParams(
        beam_width=params.n,
        max_tokens=params.max_tokens or max_model_len,
        ignore_eos=params.ignore_eos,
        length_penalty=DEFAULT_PENALTY if body.length_penalty is None else body.length_penalty,
        include_stop_str_in_output=params.include_stop_str_in_output,
    )


async def beam_outputs(
    engine: ServingEngine,
    given: dict[str, Any],
    params: SamplingParams,
    request_id: str,
    terms: RequestTerms,
    beams: BeamSearchParams,
) -> AsyncGenerator[RequestOutput, None]:
    """Yield one output, with the beams of a prompt as its choices, best first; or the failure of one of its steps.

    given: the prompt in the engine's form. params, request_id, terms: of the request. Raises RequestError for a search that
        this engine cannot run.
    """
    if not set(given) <= {"prompt", "prompt_token_ids", "cache_salt"}:
        raise RequestError("use_beam_search is of prompts of text or token ids alone; send no media.", param="messages")
    prompt: list[int] = given["prompt_token_ids"]
    search = begin_search(prompt, beams, engine.config.model, given.get("cache_salt"))
    if search.num_tokens < 1:
        raise RequestError("The prompt fills the context, so that no beam has room; shorten it.", param="max_tokens")
    of_steps = replace(terms, marks_specials=False, gives_prompt=False)
    output: RequestOutput | None = None
    step = 0
    while not search.is_over:
        found = await _step(engine, search, of_steps, f"{request_id}-{step}")
        failed = next((one for one in found if not one.outputs or not one.outputs[0].logprobs), None)
        if failed is not None:
            yield replace(failed, request_id=request_id)
            return
        search.advance([one.outputs[0].logprobs[0] for one in found if one.outputs[0].logprobs])
        output = output or found[0]
        step += 1
    assert output is not None, "a search has a step"
    sequences = search.output().sequences
    choices = [_choice(index, beam, prompt, params, terms, engine) for index, beam in enumerate(sequences)]
    yield replace(
        output,
        request_id=request_id,
        prompt=given.get("prompt"),
        prompt_token_ids=prompt,
        outputs=choices,
        finished=True,
    )


async def _step(engine: ServingEngine, search: BeamSearch, terms: RequestTerms, name: str) -> Sequence[RequestOutput]:
    """Return the output of each running beam for one more token."""
    prompts, params = next_step([search])

    async def one(index: int) -> RequestOutput:
        prompt: Any = prompts[index]
        last: RequestOutput | None = None
        async with aclosing(engine.generate(prompt, params[index], f"{name}-{index}", terms)) as outputs:
            async for output in outputs:
                last = output
        assert last is not None, "a request has an output"
        return last

    tasks = [asyncio.ensure_future(one(index)) for index in range(len(prompts))]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _choice(
    index: int,
    beam: BeamSearchSequence,
    prompt: list[int],
    params: SamplingParams,
    terms: RequestTerms,
    engine: ServingEngine,
) -> CompletionOutput:
    """Return a beam as a choice: its text, and as many log-probabilities as were asked for."""
    tokens = beam.tokens[len(prompt) :]
    plain = SamplingParams(skip_special_tokens=params.skip_special_tokens, detokenize=params.detokenize)
    state = CompletionState(index, plain, prompt, engine.tokenizer, None, marks_specials=terms.marks_specials)
    state.update(EngineOutput("", index, 0, tokens))
    state.abort("length")
    choice = state.snapshot(delta=False)
    choice.finish_reason = beam.finish_reason
    choice.cumulative_logprob = beam.cum_logprob
    if params.logprobs is not None:
        rows = zip(tokens, beam.logprobs, strict=False)  # the token that ended a beam may be left out
        choice.logprobs = [_likeliest(row, token, params.logprobs) for token, row in rows]
    return choice


def _likeliest(row: PositionLogprobs, token: int, count: int) -> PositionLogprobs:
    """Return the `count` likeliest tokens of a position, and the chosen one."""
    if count < 0:
        return row
    return {key: value for rank, (key, value) in enumerate(row.items()) if rank < count or key == token}
