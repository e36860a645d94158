"""The answer of /generative_scoring.

Owns: probabilities of log-probabilities, and the order of the items. Never does: run the engine. Called by: the pipeline,
through the row of `core_apis.routes.generative_scoring`.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import Response

from core.api.errors import RequestError
from core.api.logprobs_mode import shows_logits
from core_apis.answers.prompt_output import Outputs, PromptOutput
from core_apis.answers.stream import LIGHT, in_thread_if
from core_apis.body import json_response
from core_apis.context import ServingContext
from core_apis.errors import GenerationError, ended_early
from core_apis.protocol.usage import UsageCounter
from core_apis.scoring.bodies import PreparedScoring
from core_apis.scoring.forms import GenerativeScoringResponse, ItemScore
from core_frontend.api.outputs import RequestOutput


class ScoringAnswer:
    """The answer to one request; see `core_apis.exchange.Answer`. created: seconds since the epoch.

    Raises RequestError where the server reports logits, of which no probability in the whole vocabulary follows.
    """

    def __init__(self, context: ServingContext, prepared: PreparedScoring, answer_id: str, created: int) -> None:
        if not prepared.normalizes and shows_logits(context.model.logprobs_mode):
            raise RequestError(
                f"apply_softmax is false, but this server reports logits (--logprobs-mode {context.model.logprobs_mode}), "
                "which are no probabilities; set it to true.",
                param="apply_softmax",
            )
        self._prepared = prepared
        self._usage = UsageCounter(context.server.enable_prompt_tokens_details)
        self._head = GenerativeScoringResponse(answer_id, created, prepared.completion.model, [], self._usage.usage())

    async def whole(self, outputs: Outputs) -> Response:
        """Return the whole answer, as in `Answer`. One of many items is serialized in a thread."""
        scores: list[ItemScore] = []
        async with aclosing(outputs):
            async for index, output in outputs:
                self._usage.add(index, output)
                scores.append(ItemScore(index, self._score(output)))
        self._head.data = sorted(scores, key=lambda score: score.index)
        self._head.usage = self._usage.usage()
        return await in_thread_if(len(scores) > LIGHT, lambda: json_response(self._head))

    def events(self, first: PromptOutput, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Not used: the bodies have no field `stream`."""
        raise AssertionError("items are scored whole")

    def _score(self, output: RequestOutput) -> float:
        """Return the probability of the first label."""
        positions = output.outputs[0].logprobs
        if not positions:
            if output.outputs[0].finish_reason == "abort":
                raise ended_early()
            raise GenerationError("The engine returned no log-probabilities for an item.")
        values = [positions[0][label].logprob for label in self._prepared.labels]
        return probability(values, normalizes=self._prepared.normalizes)


def probability(values: Sequence[float], *, normalizes: bool) -> float:
    """Return the probability of the first of some tokens: among them all, or in the vocabulary.

    values: their log-probabilities; where they are normalized, logits do as well. Tokens of -inf are impossible.
    """
    if not normalizes:
        return math.exp(values[0])
    largest = max(values)
    if largest == -math.inf:
        return 0.0
    powers = [math.exp(value - largest) for value in values]
    return powers[0] / math.fsum(powers)
