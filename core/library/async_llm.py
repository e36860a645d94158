"""The engine in a process of its own, for asyncio programs: `async for output in engine.generate(...)`.

Owns: `AsyncLLM`: vLLM's names over `AsyncEngine`, and a start that nobody has to wait for. Never does: schedule, serve HTTP,
or the work of the engine's client. Called by: users.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator, Iterable
from types import TracebackType
from typing import Any, Self

from core.api.errors import EngineDeadError
from core.api.messages import SchedulerStats
from core.api.outputs import RequestOutput
from core.api.sampling_params import SamplingParams
from core.config.resolve import Resolution, resolve
from core.engine.async_engine import AsyncEngine
from core.engine.prompt_parser import PromptInput
from core.engine.request_terms import RequestTerms
from core.library.keywords import refuse_keywords
from core.library.processor_names import with_paths
from core.tokens.script_tokenizer import ScriptTokenizer

logger = logging.getLogger(__name__)


class AsyncLLM:
    """A model in a process of its own. Use it from one event loop.

    model: path or hub name; None is the embedded default. Every keyword is an engine argument.
    Raises ConfigError with all problems together.

    The process is started by the first call that needs it, or by `start`. `shutdown` ends it, and so does the end of an
    `async with` block or of the program.
    """

    def __init__(self, model: str | None = None, **engine_arguments: Any) -> None:
        given = {} if model is None else {"model": model}
        arguments = with_paths(given | engine_arguments, same_process=False)
        self._resolution: Resolution = resolve(arguments, context="serve")
        for warning in self._resolution.warnings:
            logger.warning("%s", warning)
        self._starting = asyncio.Lock()
        self._engine: AsyncEngine | None = None
        self._stopped = False

    @classmethod
    def from_engine_args(cls, engine_args: Any, usage_context: object = None, **options: Any) -> Self:
        """One with these arguments.

        engine_args: `AsyncEngineArgs` or `EngineArgs`.
        usage_context: no effect: nothing is reported to anybody.
        options: what vLLM takes besides; what asks for something is refused by name.
        """
        refuse_keywords(options)
        return cls(**dataclasses.asdict(engine_args))

    async def start(self) -> None:
        """Start the engine, if it is not running.

        Raises UserError, PluginError or EngineDeadError when it does not come up.
        """
        await self._running()

    async def generate(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run a request; yields its outputs as `sampling_params.output_kind` says, the last one with `finished`.

        prompt: text, token ids, {"prompt": text} or {"prompt_token_ids": ids}.
        request_id: of no unfinished request.
        priority: lower runs first under the priority policy.
        options: what vLLM takes besides (`lora_request`, ...); anything but None is refused by name.
        Leaving the iterator early aborts the request. Raises RequestError at the first item when the request is wrong,
        EngineDeadError when the engine dies.
        """
        refuse_keywords(options)
        engine = await self._running()
        terms = RequestTerms(priority=priority)
        outputs = engine.generate(prompt, sampling_params, request_id, terms)
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; the stream of each gets a last output with finish reason `abort`. Unknown ids are ignored."""
        if self._engine is None:
            return
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            await self._engine.abort(one)

    async def get_tokenizer(self) -> ScriptTokenizer:
        """The tokenizer, with the methods and defaults of transformers'."""
        engine = await self._running()
        return ScriptTokenizer(engine.tokenizer)

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False when running requests still hold blocks."""
        engine = await self._running()
        return await engine.reset_prefix_cache()

    async def check_health(self) -> None:
        """Raises EngineDeadError when the engine is gone, EngineStalledError when it has been silent for too long."""
        engine = await self._running()
        await engine.check_health()

    def stats(self) -> SchedulerStats:
        """State of the engine after its latest step."""
        return SchedulerStats() if self._engine is None else self._engine.stats

    @property
    def is_running(self) -> bool:
        """Whether requests are taken; the process may not be started yet."""
        return not self._stopped and not self.errored

    @property
    def is_stopped(self) -> bool:
        """Whether it was shut down, or has died."""
        return not self.is_running

    @property
    def errored(self) -> bool:
        """Whether the engine has died for good."""
        return self._engine is not None and self._engine.dead_error is not None

    @property
    def dead_error(self) -> EngineDeadError:
        """Why the engine is gone."""
        known = None if self._engine is None else self._engine.dead_error
        return known or EngineDeadError("The engine was shut down." if self._stopped else "The engine is not dead.")

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine process at once; requests that still run end with EngineDeadError. May be called twice.

        timeout: no effect: nothing is waited for. `close` lets the engine end by itself.
        """
        self._stopped = True
        if self._engine is not None:
            self._engine.abandon()

    async def close(self) -> None:
        """End the engine process, and wait until it has. May be called twice."""
        self._stopped = True
        if self._engine is not None:
            await self._engine.close()

    def __del__(self) -> None:
        if getattr(self, "_engine", None) is not None:  # there is none when the configuration was refused
            self.shutdown()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _running(self) -> AsyncEngine:
        if self._stopped:
            raise EngineDeadError("This engine was shut down; build another one.")
        async with self._starting:
            if self._engine is None:
                self._engine = await AsyncEngine.start(self._resolution)
        return self._engine


AsyncLLMEngine = AsyncLLM
"""Its older name."""
