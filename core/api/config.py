"""The resolved configuration of one engine: what every part is built from.

Owns: the frozen Structs that go, as one message, to the engine process. Never does: resolve or validate
(`core.config` does). Called by: config (writes), engine, scheduler, executor, serving (read).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from core.api.draft_spec import DraftSpec
from core.api.explanation import Scope
from core.api.logprobs_mode import LogprobsMode
from core.api.pooling import PoolingConfig
from core.api.specs import KVGroup
from core.api.weights import WeightsState


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The model as it will run.

    model:          reference given by the user (path, or hub name).
    served_names:   names that the server answers to; the first is reported.
    tokenizer:      directory or file that the tokenizer comes from; None is the checkpoint itself.
    tokenizer_mode: which files it is made from (`auto`, `hf`, `slow`, `mistral`).
    skip_tokenizer: there is none, whatever the checkpoint holds.
    dtype:          `bfloat16`, `float16` or `float32`: precision of matrix inputs and of dense weights.
    max_model_len:  prompt plus output tokens of one request.
    vocab_size:     of the model, as its family tells it.
    hf_config:      from the checkpoint (after overrides).
    max_logprobs:   largest number of logprobs a request may ask for; -1: the whole vocabulary.
    logprobs_mode:  what these numbers are.
    seed:           seeds unseeded requests drawn by `LLM`; None: from the system.
    eos_token_ids:  tokens that end a sequence.
    generation:     default sampling parameters from the checkpoint.
    overridden:     names among them whose values are the server's own.
    enforce_eager:  run the layers' own code in every step instead of replaying a recorded one.
    implementation: whose layers run, the engine's own (`core`) or those of `transformers`.
    trust_remote_code: layers may come as code with the checkpoint.
    numerics:       `fast`, or `reference`: operations in plain torch compute one row at a time.
    pooling:        how hidden states become the answer; None: the model generates text.
    reads_extra_args: whether anything here reads what requests have in `extra_args`.
    checks_params:  whether the engine is asked about a request's parameters before it runs.
    """

    model: str
    served_names: tuple[str, ...]
    tokenizer: str | None = None
    tokenizer_mode: str = "auto"
    skip_tokenizer: bool = False
    dtype: str = "bfloat16"
    max_model_len: int = 2048
    vocab_size: int = 0
    hf_config: dict[str, Any] = {}
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    seed: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    generation: dict[str, Any] = {}
    overridden: tuple[str, ...] = ()
    enforce_eager: bool = False
    implementation: Literal["core", "transformers"] = "core"
    trust_remote_code: bool = False
    numerics: str = "fast"
    pooling: PoolingConfig | None = None
    reads_extra_args: bool = True
    checks_params: bool = False


class KVEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where changes of the prefix cache are published.

    endpoint:        ZMQ address that is bound for subscribers.
    replay_endpoint: ZMQ address that is bound for questions about past batches; None: there is none.
    buffer_steps:    batches kept for replay.
    hwm:             messages that ZMQ keeps for a slow subscriber.
    max_queue_size:  batches that may wait for the publisher's thread; more are dropped.
    topic:           first frame of every message.
    """

    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache.

    block_size:            tokens in one block.
    dtype:                 storage type, a name of `core.api.specs.KV_TYPES`.
    num_blocks:            None: as many as `memory_bytes` holds.
    memory_bytes:          bytes of all blocks on the device.
    enable_prefix_caching: reuse blocks of equal prefixes.
    snapshot_interval:     tokens from one cached state of a sequence to the next, at least; None: 64.
    hash_algorithm:        of prefix blocks.
    groups:                layers that share a block table; none: all of them do.
    host_bytes:            memory for blocks that leave the device; 0: none.
    disk_path:             directory for such blocks; None: there is none.
    disk_bytes:            its size.
    events:                None: changes are not published.
    metrics_sample:        share of blocks whose residency is measured; 0: none.
    explains:              what explained answers may tell of earlier requests.
    """

    block_size: int = 16
    dtype: str = "bfloat16"
    num_blocks: int | None = None
    memory_bytes: int = 0
    enable_prefix_caching: bool = True
    snapshot_interval: int | None = None
    hash_algorithm: str = "sha256"
    groups: tuple[KVGroup, ...] = ()
    host_bytes: int = 0
    disk_path: str | None = None
    disk_bytes: int = 0
    events: KVEventsConfig | None = None
    metrics_sample: float = 0.0
    explains: Scope = "own"


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and policy of the scheduler. All in tokens or sequences.

    max_num_mixed_batched_tokens: prompt tokens of a step that gives some request a token; 0: as many as the budget leaves.
    reserve_full_prompt:          admit a request only when its whole prompt has room.
    async_scheduling:             plan a step while the one before runs.
    stream_interval:              tokens between two streamed outputs.
    max_num_queued_reqs:          requests that may wait for a first token; 0: any number.
    max_num_queued_tokens:        their prompt tokens; 0: any number.
    max_stall_s:                  seconds that a stream may wait for prompts of others between two tokens; 0.0: any time.
    max_num_reqs_per_key:         requests of one API key that may be under way, waiting or running; 0: any number.
    max_num_queued_reqs_per_key:  requests of one API key that may wait for a first token; 0: any number.
    max_num_queued_tokens_per_key: their prompt tokens; 0: any number.
    request_timeout_s:            seconds until a request without a timeout of its own ends; 0.0: never.
    policy:                       name of the `policy` plugin.
    num_speculative_tokens:       most drafts of a sequence in a step; 0: there is no speculation.
    adaptive_drafts:              choose how many by what they bring; False: always the most.
    disable_drafts_by_batch_size: with more sequences than so many waiting and running, new ones never have drafts; 0: they do.
    drafts_by_batch_size:         rows of (first size of the batch, last size, drafts of a sequence); other sizes: the most.
    draft_max_model_len:          tokens of the longest sequence that has drafts; 0: max_model_len.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int = 2048
    enable_chunked_prefill: bool = True
    max_num_mixed_batched_tokens: int = 0
    long_prefill_token_threshold: int = 0
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    reserve_full_prompt: bool = True
    async_scheduling: bool = False
    stream_interval: int = 1
    max_num_queued_reqs: int = 0
    max_num_queued_tokens: int = 0
    request_timeout_s: float = 0.0
    policy: str = "fcfs"
    num_speculative_tokens: int = 0
    max_stall_s: float = 0.0
    max_num_reqs_per_key: int = 0
    max_num_queued_reqs_per_key: int = 0
    max_num_queued_tokens_per_key: int = 0
    adaptive_drafts: bool = False
    disable_drafts_by_batch_size: int = 0
    drafts_by_batch_size: tuple[tuple[int, int, int], ...] = ()
    draft_max_model_len: int = 0

    @property
    def learns_costs(self) -> bool:
        """Whether the scheduler goes by what steps cost, and therefore learns from each of them."""
        chooses_drafts = self.num_speculative_tokens > 0 and self.adaptive_drafts
        return self.max_stall_s > 0.0 or chooses_drafts

    @property
    def max_step_tokens(self) -> int:
        """Most tokens, drafts included, by which the steps under way may advance one sequence."""
        chunk = self.max_num_batched_tokens
        if not self.enable_chunked_prefill:
            chunk = max(chunk, self.max_model_len)
        return (chunk + self.num_speculative_tokens) * (2 if self.async_scheduling else 1)


AcceptanceMethod = Literal["rejection", "typical", "synthetic"]


class AcceptanceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How drafts are accepted that the sampler would not have drawn (`core.sampling.acceptance`).

    threshold: of typical acceptance: a draft at least as likely is accepted, whatever the entropy.
    alpha:     of typical acceptance: of e^-entropy, above which a draft is accepted.
    rates:     of synthetic acceptance, by position: how often all drafts up to there are accepted.
    """

    method: AcceptanceMethod
    threshold: float = 0.09
    alpha: float = 0.3
    rates: tuple[float, ...] = ()


class ResolvedPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table that child processes load from, exactly.

    target:  `module:attribute`, or `file:PATH` with `sha256`.
    """

    kind: str
    name: str
    target: str
    distribution: str = ""
    version: str = ""
    sha256: str = ""


class PluginChoices(msgspec.Struct, frozen=True, kw_only=True):
    """Which plugin serves what, and with which arguments.

    kernels:   kernel providers in order of preference.
    attention: backend for each layer kind (`full`, `sliding`, ...).
    model:     family that reads the configuration; None: the engine's own table.
    grammars:  backends of structured outputs, in the order in which they are asked.
    logits_processors: in the order in which they run: names of plugins, and import paths (`module:Class`).
    arguments: by (kind + "." + name): the plugin's own arguments as plain values.
    table:     every plugin named above.
    """

    loader: str
    platform: str
    quantization: str | None = None
    kernels: tuple[str, ...] = ()
    attention: dict[str, str] = {}
    speculative: str | None = None
    model: str | None = None
    arguments: dict[str, dict[str, Any]] = {}
    table: tuple[ResolvedPlugin, ...] = ()
    grammars: tuple[str, ...] = ()
    logits_processors: tuple[str, ...] = ()


class StructuredOutputsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How grammars are compiled, for requests that do not say otherwise.

    backend: name of a grammar plugin, which comes first; None: the order of `PluginChoices.grammars`.
    disable_fallback: whether no other backend may take over.
    disable_any_whitespace: JSON without optional white space.
    disable_additional_properties: objects have the properties of their schema only, where it does not say.
    max_grammar_size: bytes of a schema, expression or grammar.
    max_compiled_size: bytes of what a backend makes of it.
    compile_timeout: seconds of one compilation.
    compile_memory: bytes that one compilation may take.
    cache_size: bytes of compiled grammars that are kept.
    warm: whether a process that compiles is there before the first grammar, and stays while it idles.
    """

    backend: str | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    max_grammar_size: int = 1 << 20
    max_compiled_size: int = 32 << 20
    compile_timeout: float = 10.0
    compile_memory: int = 1 << 30
    cache_size: int = 64 << 20
    warm: bool = False


class DraftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The draft that the core runs for a proposer.

    spec:          its shape; where it has no decoder, the plugin's own heads compute.
    model:         its checkpoint and precision. `max_model_len` is the longest sequence that it drafts for; where the tensors
                   lie in the target's own checkpoint, `model` is that one.
    plugins:       what reads and computes it, beside the target's.
    in_target:     whether the tensors lie in the target's own checkpoint.
    tree:          for each draft, the index of the one that it follows, -1: the newest token; empty: they are a chain.
    """

    spec: DraftSpec
    model: ModelConfig
    plugins: PluginChoices
    in_target: bool = False
    tree: tuple[int, ...] = ()


class ProfilerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What torch's profiler records, and where it writes.

    directory: of the traces.
    """

    directory: str
    with_stack: bool = True
    with_flops: bool = False
    use_gzip: bool = True
    record_shapes: bool = False
    with_memory: bool = False


class WeightTransferConfig(msgspec.Struct, frozen=True, kw_only=True):
    """From where weights may be replaced over HTTP.

    backend:   `file`, `shared_memory` or `any`.
    directory: that checkpoints must lie below; None: anywhere.
    """

    backend: str = "any"
    directory: str | None = None


class RestartConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine that died is started again.

    limit:     restarts within `window_s` seconds; one more death is final. 0: every death is.
    window_s:  see `limit`.
    backoff_s: seconds before the second restart in a row; each further one waits twice as long.
    standby:   whether a process that has imported everything waits for the next restart.
    """

    limit: int = 20
    window_s: float = 600.0
    backoff_s: float = 0.5
    standby: bool = False


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an engine is built from.

    device:            `cpu`, `cuda:0`, ...
    disable_log_stats: no periodic log line.
    stall_timeout_s:   seconds that the engine may be silent, while an answer is due, before it counts as unhealthy.
    wedge_timeout_s:   seconds that any step may last before the engine is killed as one that hangs; 0.0: it never is.
    use_tqdm_on_load:  show progress while weights are loaded.
    safetensors_load_strategy: how safetensors files are read; None: as suits where they lie.
    keep_weights:      what an engine does with prepared weights that outlived the one before: `copy`, `map`; None: none do.
    weights_file:      the descriptor, in the engine process, of the file in memory that they are kept in; None: there is none.
    structured_outputs: limits and defaults of grammars.
    state_canary:      directory of what engines must agree with before their first request; None: nothing is compared.
    restarts:          what follows when the engine dies.
    acceptance:        of drafts; None: those that the sampler draws too.
    draft:             None without a draft that the core runs.
    profiler:          None: nothing can be profiled.
    log_steps:         whether each step is a line of log.
    log_config:        for `logging.config.dictConfig`, in the engine process; empty: our own.
    sleeps:            whether weights and cache may be given back for a while.
    weight_transfer:   None: weights are not replaced over HTTP.
    weights:           what was laid over the checkpoint before this engine started.
    lasting_file:      the descriptor, in the engine process, of the file that tells the next engine; None: there is none.
    tensors_file:      the same of the file in which tensors from memory are kept.
    """

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    plugins: PluginChoices
    device: str = "cpu"
    disable_log_stats: bool = False
    stall_timeout_s: float = 120.0
    wedge_timeout_s: float = 0.0
    use_tqdm_on_load: bool = True
    safetensors_load_strategy: str | None = None
    keep_weights: str | None = None
    weights_file: int | None = None
    structured_outputs: StructuredOutputsConfig = StructuredOutputsConfig()
    state_canary: str | None = None
    restarts: RestartConfig = RestartConfig()
    acceptance: AcceptanceConfig | None = None
    draft: DraftConfig | None = None
    profiler: ProfilerConfig | None = None
    log_steps: bool = False
    log_config: dict[str, Any] = {}
    sleeps: bool = False
    weight_transfer: WeightTransferConfig | None = None
    weights: WeightsState = WeightsState()
    lasting_file: int | None = None
    tensors_file: int | None = None


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on what one client, connection or request may take of the server.

    max_connections:       open at the same time.
    max_header_size:       bytes of a request's line and headers.
    max_body_size:         bytes.
    request_read_timeout:  seconds from a request's first byte to its last.
    keep_alive_timeout:    seconds that a connection may be silent between requests.
    max_messages:          of one conversation.
    max_tools:             of one request.
    max_tools_size:        bytes of their definitions, as JSON.
    max_list_length:       entries of each list of a request.
    max_request_tokens:    output tokens that all choices of one HTTP request may ask for together.
    max_stored_responses:  of /v1/responses, kept in memory.
    max_stored_response_bytes: that these take together.
    stored_response_lifetime: seconds that one of them is not used before it goes.
    """

    max_connections: int = 2048
    max_header_size: int = 64 * 1024
    max_body_size: int = 32 * 1024 * 1024
    request_read_timeout: float = 60.0
    keep_alive_timeout: float = 30.0
    max_messages: int = 8192
    max_tools: int = 1024
    max_tools_size: int = 4 * 1024 * 1024
    max_list_length: int = 1024
    max_request_tokens: int = 4 * 1024 * 1024
    max_stored_responses: int = 4096
    max_stored_response_bytes: int = 256 * 1024 * 1024
    stored_response_lifetime: float = 24 * 3600.0


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests are kept so that they outlive the server.

    directory:  of the journal.
    max_bytes:  that it takes.
    lifetime_s: seconds for which a stream that has ended can be read.
    patience_s: seconds that a stream goes on without a reader.
    """

    directory: str
    max_bytes: int = 256 * 1024 * 1024
    lifetime_s: float = 3600.0
    patience_s: float = 60.0


class AnswerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How answers are taken apart into reasoning, text and calls.

    enable_auto_tool_choice: whether the model may decide on calls.
    tool_call_parser, reasoning_parser: name of a format, `auto` or `none`.
    rows:                    further formats, which come first, as plain values (see `core.formats.response_format`).
    reasoning_markers:       texts before and after the reasoning, in place of those of the format; None: those.
    """

    enable_auto_tool_choice: bool = True
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    rows: tuple[dict[str, Any], ...] = ()
    reasoning_markers: tuple[str, str] | None = None


class TraceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where spans of requests are sent.

    endpoint: URL of a collector.
    detailed: whether the phases of a request are spans of their own.
    """

    endpoint: str
    detailed: bool = False


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP server's own settings, as the command line gives them.

    uds:              path of a unix socket, in place of `host` and `port`.
    served_model_name_file: of further names of the model, read again when it changes.
    ssl_cert_reqs:    of clients, as `ssl.VerifyMode` numbers it.
    middleware:       import paths of the user's own.
    vllm_metrics:     whether metrics are written under vLLM's names, too.
    traces:           None: nobody is told of requests.
    log_config:       for `logging.config.dictConfig`, in each process of the server; empty: our own.
    shutdown_timeout: seconds that running requests have after a signal.
    api_server_count: processes that answer HTTP requests.
    journal:          None: nothing outlives the server.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    api_keys: tuple[str, ...] = ()
    public_prompts: tuple[str, ...] = ()
    chat_template: str | None = None
    response_role: str = "assistant"
    allowed_origins: tuple[str, ...] = ("*",)
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    root_path: str = ""
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ssl_ca_certs: str | None = None
    ssl_cert_reqs: int = 0
    enable_ssl_refresh: bool = False
    middleware: tuple[str, ...] = ()
    enable_server_load_tracking: bool = False
    enable_tokenizer_info_endpoint: bool = False
    served_model_name_file: str | None = None
    vllm_metrics: bool = False
    traces: TraceSettings | None = None
    log_config: dict[str, Any] = {}
    disable_fastapi_docs: bool = False
    disable_ui: bool = False
    uvicorn_log_level: str = "info"
    disable_uvicorn_access_log: bool = False
    enable_request_id_headers: bool = False
    enable_prompt_tokens_details: bool = False
    enable_force_include_usage: bool = False
    return_tokens_as_token_ids: bool = False
    enable_log_requests: bool = False
    max_log_len: int | None = None
    shutdown_timeout: float = 5.0
    api_server_count: int = 1
    limits: ServerLimits = ServerLimits()
    answers: AnswerSettings = AnswerSettings()
    journal: JournalSettings | None = None
