"""The engine in a process of its own, for asyncio programs: `async for output in engine.generate(...)`.

Owns: `AsyncLLM`: vLLM's names over `AsyncEngine`, and an implicit start. Never does: schedule, serve HTTP, or the work
of the engine's client. Called by: users.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from core.api.errors import EngineDeadError
from core.api.sampling_params import SamplingParams
from core.api.stats import SchedulerStats
from core.api.weights import PauseMode
from core_config.resolve import Resolution, resolve
from core_config.served.remote import refuse_remote
from core_frontend.api.outputs import RequestOutput
from core_frontend.api.pooling_outputs import PooledOutput, PoolingOutput, PoolingRequestOutput
from core_frontend.api.pooling_params import PoolingParams
from core_frontend.async_engine import AsyncEngine
from core_frontend.library.absent import AbsentNames
from core_frontend.library.arguments import keywords_of, one_id, several_ids, tags_of
from core_frontend.library.async_adapters import AsyncAdapterMethods
from core_frontend.library.keywords import refuse_keywords
from core_frontend.library.lora_request import LoRARequest
from core_frontend.library.media_prompts import MediaReader
from core_frontend.library.named_calls import CALLS, named_call
from core_frontend.library.pooled import as_tensor, whole_answer
from core_frontend.library.processor_names import with_paths
from core_frontend.library.weight_methods import as_update, check_format, check_init
from core_frontend.prompts.prompt_parser import PromptInput
from core_frontend.request_terms import RequestTerms
from core_observers.observer_settings import WORKER_EXTENSION
from core_runtime.specs.vllm_config import Section, VllmConfig
from core_tokens.script_tokenizer import ScriptTokenizer

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)


class AsyncLLM(AsyncAdapterMethods, AbsentNames):
    """A model in a process of its own. Use it from one event loop.

    model: path or hub name; None is the embedded default. Every keyword is an engine argument. Raises ConfigError with
        all problems together.

    The process is started by the first call that needs it, or by `start`. `shutdown` ends it, and so does the end of an
    `async with` block or of the program.
    """

    def __init__(self, model: str | None = None, **engine_arguments: Any) -> None:
        given = {} if model is None else {"model": model}
        arguments = with_paths(given | engine_arguments, same_process=False)
        self._resolution: Resolution = resolve(arguments, context="serve")
        refuse_remote(self._resolution.server)
        for warning in self._resolution.warnings:
            logger.warning("%s", warning)
        self._starting = asyncio.Lock()
        self._lora_ids: dict[int, str] = {}
        self._engine: AsyncEngine | None = None
        self._media: MediaReader | None = None
        self._stopped = False

    @classmethod
    def from_engine_args(cls, engine_args: Any, usage_context: object = None, **options: Any) -> Self:
        """Make an engine with these arguments.

        engine_args: `AsyncEngineArgs` or `EngineArgs`.
        usage_context: no effect: no usage is reported.
        options: vLLM's other keywords; unsupported ones are refused by name unless they have no effect.
        """
        refuse_keywords(options, cls.from_engine_args)
        return cls(**keywords_of(engine_args))

    async def start(self) -> None:
        """Start the engine, if it is not running.

        Raises UserError, PluginError or EngineDeadError if it does not come up.
        """
        await self._running()

    async def generate(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run a request; yield its outputs as `sampling_params.output_kind` says, the last one with `finished`.

        prompt: text, token ids, {"prompt": text} or {"prompt_token_ids": ids}, with `multi_modal_data` as in `TextPrompt`.
        request_id: must differ from those of unfinished requests.
        lora_request: the adapter that it uses; None: the model itself.
        priority: lower runs first under the priority policy.
        options: vLLM's other keywords; anything but None is refused by name.

        Leaving the iterator early aborts the request. Raises RequestError at the first item if the request is wrong,
        EngineDeadError when the engine dies.
        """
        refuse_keywords(options, self.generate)
        one_id(request_id)
        engine = await self._running()
        if self._media is not None and self._media.concerns(prompt):
            prompt = await asyncio.to_thread(self._media.read, prompt)
        terms = RequestTerms(priority=priority, adapter=await self._adapter(engine, lora_request, prompt))
        outputs = engine.generate(prompt, sampling_params, request_id, terms)
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()

    async def encode(
        self,
        prompt: PromptInput,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **options: Any,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput[Tensor]], None]:
        """Pool a text with a model that was started with `runner="pooling"`; yield its one output.

        pooling_params: `task` selects the kind of output; for the rest see `generate`.
        """
        refuse_keywords(options, self.encode)
        one_id(request_id)
        engine = await self._running()
        terms = RequestTerms(priority=priority, adapter=await self._adapter(engine, lora_request))
        outputs = engine.generate(prompt, pooling_params, request_id, terms)
        try:
            async for output in outputs:
                assert isinstance(output, PooledOutput), "texts to pool have no other output"
                yield as_tensor(whole_answer(output, engine.tokenizer))
        finally:
            await outputs.aclose()

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; the stream of each gets a last output with finish reason `abort`. Unknown ids are ignored."""
        ids = several_ids(request_id)
        if self._engine is None:
            return
        for one in ids:
            await self._engine.abort(one)

    async def get_tokenizer(self) -> ScriptTokenizer:
        """Return the tokenizer, with the methods and defaults of transformers'."""
        engine = await self._running()
        return ScriptTokenizer(engine.tokenizer)

    async def reset_prefix_cache(self, reset_running_requests: bool = False, **options: Any) -> bool:
        """Drop all cached prefixes; return False if running requests still hold blocks. For arguments see `LLM`."""
        refuse_keywords(options, self.reset_prefix_cache)
        engine = await self._running()
        return await engine.reset_prefix_cache(restart=reset_running_requests)

    async def start_profile(self) -> str:
        """Record the engine's steps; return the directory of traces. See `LLM.start_profile`. Raises RequestError."""
        return await (await self._running()).profile("start_profile")

    async def stop_profile(self) -> str:
        """Stop recording; return the path of the written trace. Raises RequestError."""
        return await (await self._running()).profile("stop_profile")

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """Return the model's tasks; see `LLMEngine.get_supported_tasks`."""
        pooling = self._resolution.engine.model.pooling
        return ("generate",) if pooling is None else pooling.tasks

    async def is_tracing_enabled(self) -> bool:
        """Whether requests are traced. They are not: only a server traces its requests."""
        return False

    @property
    def vllm_config(self) -> VllmConfig:
        """Return the usual settings under vLLM's names; `core config explain` shows all."""
        return VllmConfig(self._resolution.engine)

    @property
    def model_config(self) -> Section:
        """Return the settings of the model."""
        found: Section = self.vllm_config.model_config
        return found

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Release the memory of weights and cache until `wake_up`; new requests wait. Needs `enable_sleep_mode=True`.

        level: 1 stores the prepared weights in a file, 2 reads them from the checkpoint again.
        mode: for current requests: `abort` ends them, `wait` lets them end first, `keep` continues them later.
        Raises RequestError if the engine refuses, as do all methods below.
        """
        await (await self._running()).control.sleep(level, mode)

    async def wake_up(self, tags: str | Sequence[str] | None = None) -> None:
        """Restore memory. tags: which part, `weights` or `kv_cache`; None: all of it."""
        await (await self._running()).control.wake_up(tags_of(tags))

    async def is_sleeping(self) -> bool:
        """Whether some of the memory is released."""
        return await (await self._running()).control.is_sleeping()

    async def pause_generation(
        self, *, mode: PauseMode = "abort", wait_for_inflight_requests: bool | None = None, clear_cache: bool = True
    ) -> None:
        """Pause the engine until `resume_generation`; new requests wait.

        mode: see `sleep`.
        wait_for_inflight_requests: the older spelling of mode `wait`.
        clear_cache: whether cached prefixes are dropped.
        """
        control = (await self._running()).control
        await control.pause("wait" if wait_for_inflight_requests else mode, clear_cache=clear_cache)

    async def resume_generation(self) -> None:
        """End a pause; waiting requests run."""
        await (await self._running()).control.resume()

    async def is_paused(self) -> bool:
        """Whether generation is paused."""
        return await (await self._running()).control.is_paused()

    @property
    def weight_version(self) -> str:
        """Return the version of the current weights, as last reported; empty for those of the checkpoint."""
        return self.stats().weight_version

    async def init_weight_transfer_engine(self, request: Any = None) -> None:
        """Do nothing: a transfer needs no preparation; see `LLM.init_weight_transfer_engine`."""
        check_init(request)

    async def update_weights(self, request: Any = None, *, mode: PauseMode = "keep", **fields: Any) -> str:
        """Replace some or all weights; return the new version. See `LLM.update_weights`. mode: see `sleep`."""
        update = as_update(request, fields)
        return await (await self._running()).control.update_weights(update, mode)

    async def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        """Collect updates until `finish_weight_update`."""
        check_format(is_checkpoint_format)
        await (await self._running()).control.start_weight_update()

    async def finish_weight_update(self, weight_version: str | None = None, *, mode: PauseMode = "keep") -> str:
        """Apply the collected updates; return the version of the weights."""
        return await (await self._running()).control.finish_weight_update(weight_version, mode)

    async def reload_weights(self) -> str:
        """Read the weights again from their files; return their version."""
        return await (await self._running()).control.reload_weights()

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method by name in the engine; return its answer in a list of one.

        method: one of `core_frontend.library.named_calls`, or a public method of `worker_extension_cls`; the engine is
            another process, so nothing else is called there.
        timeout: seconds; None: no limit.
        Raises RequestError for another name or for arguments that it does not take, TimeoutError.
        """
        engine = await self._running()
        control = engine.control
        if method not in CALLS and WORKER_EXTENSION in engine.config.plugins.arguments:
            given = {"method": method, "args": list(args), "kwargs": dict(kwargs or {})}
            return [await asyncio.wait_for(control.call("call_worker_extension", **given), timeout)]
        call = named_call(method, args, kwargs or {})
        return [await asyncio.wait_for(call.on(control), timeout)]

    async def check_health(self) -> None:
        """Raise EngineDeadError if the engine is gone, EngineStalledError if it has been silent for too long."""
        engine = await self._running()
        await engine.check_health()

    def stats(self) -> SchedulerStats:
        """Return the state of the engine after its latest step."""
        return SchedulerStats() if self._engine is None else self._engine.stats

    @property
    def is_running(self) -> bool:
        """Whether requests are accepted; the process may not be started yet."""
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
        """Return why the engine is gone."""
        known = None if self._engine is None else self._engine.dead_error
        return known or EngineDeadError("The engine was shut down." if self._stopped else "The engine is not dead.")

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine process at once; requests that still run end with EngineDeadError. May be called twice.

        timeout: no effect: there is no wait. `close` lets the engine end by itself.
        """
        self._stopped = True
        if self._media is not None:
            self._media.close()
        if self._engine is not None:
            self._engine.abandon()

    async def close(self) -> None:
        """End the engine process, and wait until it has. May be called twice."""
        self._stopped = True
        if self._media is not None:
            await asyncio.to_thread(self._media.close)
        if self._engine is not None:
            await self._engine.close()

    def __del__(self) -> None:
        if getattr(self, "_engine", None) is not None:  # there is none if the configuration was refused
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
                engine = await AsyncEngine.start(self._resolution)
                refusal = self._resolution.server.media_refusal
                self._media = MediaReader(self._resolution.engine, engine.tokenizer, refusal)
                self._engine = engine
        return self._engine


AsyncLLMEngine = AsyncLLM
"""The older name of `AsyncLLM`."""
