"""An engine that starts, answers one request, and ends."""

from core.api.config import EngineConfig
from core.api.messages import EngineRequest, TokenLogprobs
from core.api.sampling_params import SamplingParams
from core.engine.core import EngineCore
from core_runtime.executor.uniproc import UniprocExecutor

PROMPT = [7, 100, 3, 55, 201, 9, 8, 77]

Answer = tuple[list[int], list[TokenLogprobs]]


def answer(config: EngineConfig) -> Answer:
    """The tokens and their log-probabilities of an engine that starts and ends."""
    core = EngineCore(config, UniprocExecutor(config))
    try:
        params = SamplingParams(max_tokens=12, temperature=0.8, logprobs=3, ignore_eos=True)
        core.add([EngineRequest("a", 0, PROMPT, params, seed=4)])
        tokens: list[int] = []
        logprobs: list[TokenLogprobs] = []
        while core.has_work():
            for output in core.step().outputs:
                tokens += output.token_ids
                logprobs += output.logprobs or []
        return tokens, logprobs
    finally:
        core.close()
