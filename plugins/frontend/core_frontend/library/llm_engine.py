"""The engine in this process, whose caller drives the steps: `add_request`, `step` until nothing is unfinished.

Owns: `LLMEngine`: a resolved configuration, its engine, and the steps of one request through both. Never does: run a
batch to its end, render conversations (`LLM` does) or use threads. Called by: users, and `LLM`, its subclass.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from core.api.config import EngineConfig
from core.api.errors import ConfigError, EngineDeadError, PluginError, RequestError
from core.api.sampling_params import SamplingParams
from core.api.stats import SchedulerStats
from core_config.ranks import is_launched, ranks_in
from core_frontend.api.outputs import RequestOutput
from core_frontend.api.pooling_params import PoolingParams
from core_frontend.batch_run import log_errors
from core_frontend.io.pool import BlockingIO
from core_frontend.library.absent import AbsentNames
from core_frontend.library.adapter_methods import AdapterMethods
from core_frontend.library.arguments import keywords_of, one_id, several_ids
from core_frontend.library.keywords import refuse_keywords
from core_frontend.library.lora_request import LoRARequest
from core_frontend.library.media_prompts import MediaReader
from core_frontend.library.metrics import Metric, metrics_of
from core_frontend.library.processor_names import with_paths
from core_frontend.library.weight_methods import WeightMethods
from core_frontend.output_processor import OutputProcessor
from core_frontend.prompts.input_processor import InputProcessor, ProcessedInput
from core_frontend.prompts.prompt_parser import PromptInput
from core_frontend.prompts.tokenizing import load_tokenizer
from core_frontend.request_tally import RequestTally
from core_frontend.request_terms import RequestTerms
from core_frontend.stepped import SteppedClient
from core_grammars.compiler import GrammarCompiler
from core_runtime.specs.vllm_config import Section, VllmConfig
from core_supervision.link.inproc import InprocClient, garbage_waits
from core_tokens.script_tokenizer import ScriptTokenizer
from core_tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from core_config.resolve import Resolution
    from core_frontend.library.sharded_state import EngineCore
    from core_observers.receipts.issuer import ReceiptIssuer

logger = logging.getLogger(__name__)


class LLMEngine(AdapterMethods, WeightMethods, AbsentNames):
    """A model in this process.

    model: path or hub name; None is the embedded default.
    tokenizer: where the tokenizer comes from, if not from the model.
    Every other keyword is an engine argument under its command-line name with underscores (`max_model_len`, ...).
    Raises UserError (ConfigError with all problems together, CheckpointError) or PluginError when it cannot be built.

    One thread at a time. `close` it, or use it as a context manager, to give its memory back.
    """

    def __init__(self, model: str | None = None, *, tokenizer: str | None = None, **engine_arguments: Any) -> None:
        named = {"model": model, "tokenizer": tokenizer}
        given = {name: value for name, value in named.items() if value is not None}
        arguments = with_paths(given | engine_arguments, same_process=True)
        self._ids = itertools.count()
        self._lora_ids: dict[int, str] = {}
        self._client: SteppedClient | None = None
        with garbage_waits():
            self._start(arguments)

    @classmethod
    def from_engine_args(cls, engine_args: Any, usage_context: object = None, **options: Any) -> Self:
        """Make an engine with these arguments.

        engine_args: `EngineArgs`.
        usage_context: no effect: no usage is reported.
        options: vLLM's other keywords; anything but None is refused by name.
        """
        refuse_keywords(options, cls.from_engine_args)
        return cls(**keywords_of(engine_args))

    def add_request(
        self,
        request_id: str,
        prompt: PromptInput,
        params: SamplingParams,
        arrival_time: float | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **options: Any,
    ) -> str:
        """Queue a request, whose outputs `step` returns. Return its id.

        request_id: must differ from those of unfinished requests.
        prompt: text, token ids, {"prompt": text} or {"prompt_token_ids": ids}.
        arrival_time: seconds since the epoch; None is now.
        lora_request: the adapter that it uses; None: the model itself.
        priority: lower runs first under the priority policy.
        options: vLLM's other keywords; anything but None is refused by name.
        Raises RequestError for a wrong request; the others continue.
        """
        refuse_keywords(options, self.add_request)
        if one_id(request_id) in self._output:
            raise RequestError(
                f"request_id {request_id!r} is an unfinished request's; give another.", param="request_id"
            )
        client = self._live_client()
        [adapter] = self._spread_adapters(lora_request, 1)
        terms = RequestTerms(priority=priority, arrival=time.monotonic(), adapter=adapter)
        entry = self._check(request_id, prompt, params, terms, arrival_time)
        self._output.add(entry)
        client.add(entry.requests)
        return request_id

    def step(self) -> list[RequestOutput]:
        """Run one step. Return the outputs of requests with news, as their `output_kind` says; the last one is
        `finished`.

        Raises EngineDeadError when the engine is broken, RequestError while it sleeps.
        """
        client = self._live_client()
        if not client.has_work():
            self._check_awake()
        processed = self._output.process(client.step())
        if processed.stopped:
            client.abort_choices(processed.stopped)
        for output in processed.outputs:
            if output.finished:
                log_errors(output)
        if not len(self._output):
            while client.has_work():  # so that nothing is left in flight
                client.step()
        return processed.outputs

    def has_unfinished_requests(self) -> bool:
        """Whether another step would advance a request."""
        return len(self._output) > 0

    def get_num_unfinished_requests(self) -> int:
        """Return the number of requests that `step` has not returned with `finished` yet."""
        return len(self._output)

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """End requests, which then have no further output; unknown ids are ignored."""
        ids = several_ids(request_id)
        self._output.abort(ids)
        self._live_client().abort(ids)

    def get_tokenizer(self) -> ScriptTokenizer:
        """Return the tokenizer, with the methods and defaults of transformers'.

        Raises ConfigError if the model has none.
        """
        return ScriptTokenizer(self._need_tokenizer())

    def get_metrics(self) -> list[Metric]:
        """Return the state of the scheduler, and request statistics, under the names of vLLM's metrics.

        With disable_log_stats, there are no request statistics.
        """
        return metrics_of(self.stats(), self._config.model.served_names[0], self._output.tally)

    @property
    def llm_engine(self) -> Self:
        """Return the engine itself, under the name that vLLM's `LLM` has for it."""
        return self

    @property
    def engine_core(self) -> EngineCore:
        """Return the object on which scripts written for vLLM call `save_sharded_state`."""
        from core_frontend.library.sharded_state import EngineCore

        client = self._live_client()
        return EngineCore(lambda: client.worker.open_checkpoint(client.worker.chain(client.core.config.weights)))

    @property
    def vllm_config(self) -> VllmConfig:
        """Return the usual settings under vLLM's names; `core config explain` shows all."""
        return VllmConfig(self._config)

    @property
    def model_config(self) -> Section:
        """Return the settings of the model."""
        found: Section = self.vllm_config.model_config
        return found

    def get_supported_tasks(self) -> tuple[str, ...]:
        """Return the model's tasks: `generate`, or the uses of its vectors."""
        pooling = self._config.model.pooling
        return ("generate",) if pooling is None else pooling.tasks

    def get_world_size(self, include_dp: bool = True) -> int:
        """Return the number of ranks. include_dp: whether those of all engines count; otherwise those of one."""
        return ranks_in(self._config) * (self._config.data_parallel_size if include_dp else 1)

    def reset_prefix_cache(self, reset_running_requests: bool = False, **options: Any) -> bool:
        """Drop all cached prefixes; return False if blocks are still in use.

        reset_running_requests: whether running requests are restarted first, with the tokens that they have; then it
            returns True.
        options: vLLM's other keywords; unsupported ones are refused by name unless they have no effect.
        """
        refuse_keywords(options, self.reset_prefix_cache)
        return self._live_client().reset_prefix_cache(restart=reset_running_requests)

    def stats(self) -> SchedulerStats:
        """Return the state of the scheduler: requests, KV usage, prefix hits, preemptions, drafts."""
        return self._live_client().stats()

    def close(self) -> None:
        """Release the engine's memory and threads; may be called twice."""
        client = self._client
        self._client = None
        if client is not None:
            self._grammars.close()
            self._media.close()
            if self._io is not None:
                self._io.close()
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, arguments: dict[str, Any]) -> None:
        """Resolve the arguments and build the engine, without optional plugins that fail."""
        from core_config.resolve import resolve

        resolution = resolve(arguments, context="llm")
        for warning in resolution.warnings:
            logger.warning("%s", warning)
        while self._client is None:
            try:
                self._build(resolution)
            except PluginError as error:
                resolution = resolution.without(error)

    def _build(self, resolution: Resolution) -> None:
        self._config: EngineConfig = resolution.engine
        self._answers = resolution.server.answers
        self._chat_template = resolution.server.chat_template
        self._receipts: ReceiptIssuer | None = None
        self._io: BlockingIO | None = None
        self._tokenizer = load_tokenizer(resolution.manifest.tokenizer, self._config)
        self._input = InputProcessor(self._config.model, self._tokenizer, self._config.cache.explains)
        tally = None if self._config.disable_log_stats else RequestTally()
        self._output = OutputProcessor(self._tokenizer, self._config.scheduler.stream_interval, tally)
        self._grammars = GrammarCompiler(self._config, self._tokenizer)
        self._media = MediaReader(self._config, self._tokenizer, resolution.server.media_refusal)
        if self._config.data_parallel_size > 1:
            from core_frontend.group.inproc import OfflineGroup

            self._client = OfflineGroup(self._config, self._output)
        elif is_launched(self._config):
            self._client = _launched_client(resolution)
        else:
            self._client = InprocClient(self._config)

    def _live_client(self) -> SteppedClient:
        if self._client is None:
            raise EngineDeadError("This engine was closed; build another one.")
        return self._client

    def _check_awake(self) -> None:
        """Raise RequestError if no step would compute anything."""
        if self._live_client().core.is_halted:
            raise RequestError("The engine sleeps; call wake_up first.", status=409, code="engine_sleeps")

    def _need_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise ConfigError(
                [f"The model {self._config.model.model!r} runs without a tokenizer; name one: tokenizer=..."]
            )
        return self._tokenizer

    def _check(
        self,
        request_id: str,
        prompt: PromptInput,
        params: SamplingParams | PoolingParams,
        terms: RequestTerms,
        arrival_time: float | None = None,
    ) -> ProcessedInput:
        """Return one checked request, with its grammar. Raises RequestError."""
        wanted = getattr(params, "structured_outputs", None)
        begin = time.monotonic()
        grammar = None if wanted is None else self._grammars.compile(wanted)
        if grammar is not None:
            terms = terms.with_grammar(begin)
        prompt = self._media.read(prompt)
        terms = self._with_media_adapter(terms, prompt)
        processed = self._input.process(request_id, prompt, params, terms, arrival_time=arrival_time, grammar=grammar)
        if self._config.model.checks_params and isinstance(params, SamplingParams):
            wrong = self._live_client().core.call("check_params", {"params": params})
            if wrong:
                raise RequestError(wrong, param="extra_args")
        return processed


def _launched_client(resolution: Resolution) -> SteppedClient:
    """Return the client of one of several ranks that a launcher has started."""
    from core_distributed.launched.clients import launched_client

    return launched_client(resolution.engine, resolution.server.node_rank)
