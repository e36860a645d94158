"""Fake engines whose models write what a test says: always the same, or by what the prompt contains."""

import asyncio
from collections.abc import Sequence

import numpy as np

from core.api.messages import EngineOutput, EngineOutputs, EngineRequest
from core_tokens.tokenizer import Tokenizer
from tests.apis.fake_engine import EOS, FakeClient, token_logprobs


class ScriptedClient(FakeClient):
    """Answers every request with `script`, special tokens written out.

    script: the model's words; the end of the sequence follows.
    chunk:  tokens in one output.
    seen:   requests that came.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.script = ""
        self.chunk = 1
        self.seen: list[EngineRequest] = []

    async def run(self, request: EngineRequest) -> None:
        self.seen.append(request)
        params = request.params
        ids = [*self.tokenizer.encode(self.script, add_special_tokens=False), EOS]
        limit = params.max_tokens or len(ids)
        cut = len(ids) > limit
        ids = ids[:limit]
        for start in range(0, len(ids), self.chunk):
            await asyncio.sleep(0)
            tokens = ids[start : start + self.chunk]
            output = EngineOutput(request.request_id, request.choice, start, tokens)
            if params.logprobs is not None:
                size = self.tokenizer.vocab_size
                output.logprobs = [token_logprobs(token, params.logprobs, size) for token in tokens]
            if start + self.chunk >= len(ids):
                output.finish_reason = "length" if cut else "stop"
                self.live.pop(request.key, None)
            self.on_outputs(EngineOutputs(0, [output], self.stats()))


class PoolingClient(FakeClient):
    """Pools by counting bytes: number i of a vector says how often token i + `FIRST` comes in the text.

    seen: requests that came.
    """

    FIRST = 97
    SIZE = 4

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.seen: list[EngineRequest] = []

    async def run(self, request: EngineRequest) -> None:
        self.seen.append(request)
        await asyncio.sleep(0)
        text = self.tokenizer.decode(request.prompt_token_ids)
        assert request.pooling is not None
        vector = [float(text.count(chr(self.FIRST + index))) for index in range(self.SIZE)]
        numbers = np.array(vector[: request.pooling.dimensions or self.SIZE], np.float32)
        if request.pooling.tokenwise:
            numbers = np.tile(numbers, request.pooling.num_rows(len(request.prompt_token_ids)))
        output = EngineOutput(request.request_id, request.choice, 0, [], finish_reason="stop", pooled=numbers.tobytes())
        if "BROKEN" in text:
            output = EngineOutput(
                request.request_id, request.choice, 0, [], finish_reason="error", stop_reason="It broke."
            )
        self.live.pop(request.key, None)
        self.on_outputs(EngineOutputs(0, [output], self.stats()))


class KeepingClient(FakeClient):
    """Keeps the requests that come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.seen: list[EngineRequest] = []

    async def run(self, request: EngineRequest) -> None:
        self.seen.append(request)
        await super().run(request)


class ConversingClient(FakeClient):
    """Answers by what the prompt contains.

    rows: (part of the prompt, answer); the last row that fits is taken, so that a conversation goes on as the rows do.
    """

    def __init__(self, tokenizer: Tokenizer, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__(tokenizer)
        self.rows = rows

    def answer(self, prompt: str, choice: int) -> list[int]:
        text = self._written(prompt)
        if text is None:
            return super().answer(prompt, choice)
        return [*self.tokenizer.encode(text, add_special_tokens=False), EOS]

    def steering(self, prompt: str) -> str:
        """Prompts of real clients hold any words."""
        return prompt if self._written(prompt) is None else ""

    def _written(self, prompt: str) -> str | None:
        fitting = [text for part, text in self.rows if part in prompt]
        return fitting[-1] if fitting else None
