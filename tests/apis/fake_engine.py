"""A real AsyncEngine over a client that answers every request with a fixed text instead of running a model.

Input and output processing, aborts and streams are the engine's own. Words in the prompt steer the client:
`SLOW` waits between tokens, `STUCK` gives three and then none, `FAIL` ends with an error after three tokens, `DIE` ends the
engine after three tokens.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from core.api.adapters import AdaptersConfig
from core.api.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    PluginChoices,
    ProfilerConfig,
    SchedulerConfig,
    WeightTransferConfig,
)
from core.api.errors import EngineDeadError, UtilityError
from core.api.messages import EngineOutput, EngineOutputs, EngineReady, EngineRequest, TokenLogprobs
from core.api.pooling import PoolingConfig
from core.api.stats import SchedulerStats
from core_frontend.async_engine import AsyncEngine
from core_tokens.tokenizer import Tokenizer

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
BOS, EOS = 0, 1
ANSWERS = ("Hello, wörld 🙂! The end.", "Second answer: a b c.", "Third one.")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MAX_MODEL_LEN = 256
SLOW_SECONDS = 0.02


def make_tokenizer(template: str | None = TEMPLATE, more_special: Sequence[str] = ()) -> Tokenizer:
    """One token a byte, after the special ones; texts begin with <s>."""
    special = [*SPECIAL, *more_special]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*special, *alphabet])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.add_special_tokens(special)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return Tokenizer(backend, bos_token_id=BOS, eos_token_id=EOS, chat_template=template)


def answer_ids(tokenizer: Tokenizer, choice: int) -> list[int]:
    """What the fake generates for a choice, end of sequence included."""
    return [*tokenizer.encode(ANSWERS[choice % len(ANSWERS)], add_special_tokens=False), EOS]


def token_logprobs(token: int, count: int, vocab_size: int) -> TokenLogprobs:
    """The chosen token is always the second most likely one."""
    others = [(token + 1 + step) % vocab_size for step in range(count + 1)]
    ranked = [others[0], token, *others[1:]][:count]
    values = {other: -0.5 * (rank + 1) for rank, other in enumerate(ranked)}
    ids = [token, *ranked]
    return TokenLogprobs(ids, [values.get(i, -1.0) for i in ids], [2, *range(1, len(ranked) + 1)])


class FakeClient:
    """Stands where the ZMQ client stands. live: sequences that run now. aborted: request ids that were aborted early."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ready = EngineReady(0, 64, 16, MAX_MODEL_LEN, "fake", [("weights", 0.01)])
        self.live: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.aborted: list[str] = []
        self.silence_s = 0.0

    def listen(self, on_outputs: object, on_death: object) -> None:
        self.on_outputs, self.on_death = on_outputs, on_death

    async def add(self, requests: Sequence[EngineRequest]) -> None:
        for request in requests:
            self.live[request.key] = asyncio.ensure_future(self.run(request))

    def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids
        self.abort_choices([key for key in self.live if key[0] in request_ids])

    def abort_choices(self, keys: Sequence[tuple[str, int]]) -> None:
        for key in keys:
            task = self.live.pop(key, None)
            if task is not None:
                task.cancel()

    def ping(self) -> asyncio.Future[str]:
        return asyncio.get_running_loop().create_future()

    async def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> Any:
        if method == "list_adapters":
            return {"number": 0, "adapters": []}
        if "profile" in method:
            return self._profile(method)
        wanted = arguments or {}
        return not self.live or bool(wanted.get("reset_running_requests"))

    def _profile(self, method: str) -> str:
        """As an engine with a profiler that records already."""
        if method == "start_profile":
            raise UtilityError("A profile is being recorded already; stop it first.")
        return "/traces/one"

    async def close(self) -> None:
        self.abort_choices(list(self.live))

    def kill(self) -> None:
        self.abort_choices(list(self.live))

    def die(self, cause: str) -> None:
        self.on_death(EngineDeadError(cause))

    async def run(self, request: EngineRequest) -> None:
        prompt, params = self.tokenizer.decode(request.prompt_token_ids), request.params
        ids = self.answer(prompt, request.choice)
        prompt = self.steering(prompt)
        num_given = 0 if request.resume is None else len(request.resume.output_token_ids)
        for start, token in enumerate(ids):
            if start < num_given:
                continue
            await asyncio.sleep(SLOW_SECONDS if "SLOW" in prompt else 0)
            if start == 3 and "STUCK" in prompt:
                await asyncio.Event().wait()
            if start == 3 and "DIE" in prompt:
                self.die("The engine process ended with signal 9.")
                return
            output = EngineOutput(request.request_id, request.choice, start, [token], num_cached_tokens=2)
            if params.logprobs is not None:
                output.logprobs = [token_logprobs(token, params.logprobs, self.tokenizer.vocab_size)]
                for listed in params.logprob_token_ids or ():
                    output.logprobs[0].token_ids.append(listed)
                    output.logprobs[0].logprobs.append(-1.0 - listed % 7)
                    output.logprobs[0].ranks.append(9)
            if params.prompt_logprobs is not None and start == 0:
                output.prompt_logprobs = [
                    token_logprobs(known, params.prompt_logprobs, self.tokenizer.vocab_size)
                    for known in request.prompt_token_ids[1:]
                ]
            if start == 3 and "FAIL" in prompt:
                output.finish_reason, output.stop_reason = "error", "The logits are not finite."
            elif request.deadline and time.monotonic() >= request.deadline:
                output.finish_reason, output.stop_reason = "timeout", "The request's time was up."
            elif token in request.stop_token_ids:
                output.finish_reason = "stop"
                output.stop_reason = None if token in request.eos_token_ids else token
            elif start + 1 >= (params.max_tokens or 0):
                output.finish_reason = "length"
            if output.finish_reason is not None:
                self.live.pop(request.key, None)
            self.on_outputs(EngineOutputs(0, [output], self.stats()))
            if output.finish_reason is not None:
                return

    def answer(self, prompt: str, choice: int) -> list[int]:
        """The tokens of an answer, end of sequence included."""
        return answer_ids(self.tokenizer, choice)

    def steering(self, prompt: str) -> str:
        """The words that steer the client."""
        return prompt

    def stats(self) -> SchedulerStats:
        return SchedulerStats(num_running=len(self.live), prefix_queries=10, prefix_hits=4, kv_cache_usage=0.25)


def make_engine(
    *,
    max_logprobs: int = 20,
    generation: dict[str, object] | None = None,
    overridden: tuple[str, ...] = (),
    scheduler: SchedulerConfig | None = None,
    texts: bool = True,
    tokenizer: Tokenizer | None = None,
    client: Callable[[Tokenizer], FakeClient] = FakeClient,
    max_model_len: int = MAX_MODEL_LEN,
    cache: CacheConfig | None = None,
    make_client: Callable[[Tokenizer, EngineConfig], FakeClient] | None = None,
    plugins: PluginChoices | None = None,
    profiler: ProfilerConfig | None = None,
    pooling: PoolingConfig | None = None,
    embedding_size: int = 0,
    reads_extra_args: bool = True,
    checks_params: bool = False,
    changes: bool = False,
) -> AsyncEngine:
    """Call it inside the event loop that will use the engine.

    texts: False is a server without a tokenizer.
    client, make_client: make another client than the one with fixed texts.
    plugins: chosen for a real model, so that grammars are compiled.
    pooling: how a model pools that gives vectors.
    embedding_size: numbers of an embedding in a prompt; 0: prompts have none.
    reads_extra_args, checks_params: whether it has logits processors.
    changes: whether there are paths that have the engine sleep, replace its weights, load adapters, or drain one of several.
    """
    tokenizer = tokenizer or make_tokenizer()
    model = ModelConfig(
        model="/models/fake",
        served_names=("fake-model", "alias"),
        max_model_len=max_model_len,
        vocab_size=tokenizer.vocab_size,
        max_logprobs=max_logprobs,
        eos_token_ids=(EOS,),
        generation=generation or {},
        overridden=overridden,
        pooling=pooling,
        embedding_size=embedding_size,
        reads_extra_args=reads_extra_args,
        checks_params=checks_params,
    )
    config = EngineConfig(
        model=model,
        cache=cache or CacheConfig(),
        scheduler=scheduler or SchedulerConfig(),
        plugins=plugins or PluginChoices(loader="dummy", platform="cpu"),
        disable_log_stats=True,
        profiler=profiler,
        sleeps=changes,
        weight_transfer=WeightTransferConfig() if changes else None,
        adapters=AdaptersConfig() if changes else None,
        data_parallel_size=2 if changes else 1,
    )
    served = tokenizer if texts else Tokenizer.absent()
    chosen = client(tokenizer) if make_client is None else make_client(tokenizer, config)
    return AsyncEngine(config, served, chosen)  # type: ignore[arg-type]


def set_state(engine: AsyncEngine, state: SchedulerStats) -> None:
    """Give the engine a state that it tells until its next step."""
    engine._totals.latest = state


def client_of(engine: AsyncEngine) -> FakeClient:
    """The fake behind `engine`."""
    client = engine._client
    assert isinstance(client, FakeClient)
    return client
