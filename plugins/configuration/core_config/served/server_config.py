"""The HTTP server's own settings.

Owns: `ServerConfig` and its parts; limits and answers have files of their own, and can be imported from here as well.
Never does: resolve or validate. Called by: configuration (writes), serving (reads).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from core.api.plugin_choices import ResolvedPlugin
from core_config.served.template_settings import TemplateSettings
from core_config.step_work import StepWork
from core_formats.answers.settings import AnswerSettings
from core_formats.server_limits import ServerLimits

__all__ = [
    "AdapterSettings",
    "AnswerSettings",
    "BatchSettings",
    "JournalSettings",
    "ReceiptSettings",
    "RecordSettings",
    "RemoteSettings",
    "ServerConfig",
    "ServerLimits",
    "TemplateSettings",
    "TraceSettings",
]


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The journal of requests, which outlives the server.

    directory: directory of the journal.
    max_bytes: limit of its size.
    lifetime_s: seconds for which a finished stream can be read.
    patience_s: seconds for which a stream continues without a reader.
    """

    directory: str
    max_bytes: int = 256 * 1024 * 1024
    lifetime_s: float = 3600.0
    patience_s: float = 60.0


class ReceiptSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Receipts of answers.

    every: whether every answer gets one, or those that ask.
    key_file: file with the key that signs them; None: they are not signed.
    """

    every: bool = False
    key_file: str | None = None


class RecordSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded traffic.

    directory: directory of the records.
    share: share of the requests that are recorded.
    max_bytes: limit of their size.
    """

    directory: str
    share: float = 0.01
    max_bytes: int = 256 * 1024 * 1024


class TraceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The destination of requests' spans.

    endpoint: URL of a collector.
    detailed: whether the phases of a request are spans of their own.
    """

    endpoint: str
    detailed: bool = False


class RemoteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The connection of an API server and engines of other commands.

    role: role of this command: an `api_server` answers HTTP requests and listens, an `engine` computes and connects.
    group_size: engines of the group, on all machines.
    num_own: engines that the API server's own command starts; their ranks are the first ones.
    address, port: address on which the API server listens.
    key_file: file with the secret that both share; None: nothing is protected.
    patience_s: seconds for which one waits for the other.
    on_ray: whether Ray starts the engines that are not the API server's own.
    """

    role: Literal["api_server", "engine"]
    address: str
    port: int
    key_file: str | None = None
    patience_s: float = 600.0
    group_size: int = 1
    num_own: int = 0
    on_ray: bool = False


class AdapterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a server finds adapters.

    directory:  directory below which they lie, absolute; None: requests cannot name paths.
    resolvers:  plugins that find adapters by unknown names, in this order.
    timeout_s:  seconds that they have for one name.
    is_updated: whether the operator may load and unload adapters.
    """

    directory: str | None = None
    resolvers: tuple[ResolvedPlugin, ...] = ()
    timeout_s: float = 30.0
    is_updated: bool = False


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Files and batches, which outlive the server.

    directory:    directory of both, absolute.
    max_bytes:    limit of all files of one API key, results included.
    max_requests: limit of the requests of one batch.
    """

    directory: str
    max_bytes: int = 1024 * 1024 * 1024
    max_requests: int = 50_000


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP server's own settings, as the command line gives them.

    num_ranks, num_engines: processes that share a model's weights in one engine, and engines.
    num_servers: servers that the command starts, one a port; 1: it is a server itself.
    node_rank: number of this node of an engine on several hosts; others than 0 have no server.
    is_one_of_several: whether another command has started this server, and ends it.

    uds: path of a unix socket, in place of `host` and `port`.
    api_keys: keys, one of which every request must carry; empty: none is needed.
    admin_api_keys: keys of the operator; see `core_apis.callers.access.operators`.
    served_model_name_file: file with further names of the model, read again when it changes.
    template: what the chat template is told besides a conversation.
    ssl_ciphers: None: Python's choice.
    ssl_cert_reqs: requirement for clients' certificates, a number of `ssl.VerifyMode`.
    middleware: import paths of the user's own middleware.
    vllm_metrics: whether metrics are written under vLLM's names, too.
    show_hidden_metrics_for_version: version of vLLM since which hidden names are among these; None: they are not.
    step_work: work of the model's steps, for metrics; None: it is not estimated.
    traces: None: requests are not traced.
    log_config: argument of `logging.config.dictConfig`, in each process of the server; empty: our own.
    shutdown_timeout: seconds that running requests have after a signal.
    api_server_count: processes that answer HTTP requests.
    enable_log_deltas: whether the pieces of logged answers are logged, too.
    sse_keep_alive_interval: seconds of silence after which a stream sends a comment; 0: never.
    custom_histogram_buckets: bounds by what histograms measure, see `core_observers.request_families`.
    log_error_stack: whether refusals are logged with a traceback.
    max_callback_ms: milliseconds after which a callback of the event loop is reported as slow; None: nothing is
        measured.
    journal: None: no request outlives the server.
    receipts: None: no answer gets one.
    recording: None: no request is recorded.
    batches: None: the server has no files and no batches.
    quotes: whether it foretells when requests have their first token and their end.
    prefill_servers: URLs of servers that may compute prompts.
    tool_servers: MCP servers whose tools this server runs, as the user gave them.
    default_service_tier: class of requests that name none, `default` or `flex`.
    apis: HTTP APIs in the order in which their paths are matched; None: all of the engine's own.
    adapters: None: the server has no adapters.
    media_refusal: why the model's pictures are not served; empty where they are.
    remote: None: this command has both an API server and an engine.
    """

    num_ranks: int = 1
    num_engines: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    api_keys: tuple[str, ...] = ()
    admin_api_keys: tuple[str, ...] = ()
    public_prompts: tuple[str, ...] = ()
    chat_template: str | None = None
    template: TemplateSettings = TemplateSettings()
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
    ssl_ciphers: str | None = None
    enable_ssl_refresh: bool = False
    middleware: tuple[str, ...] = ()
    enable_server_load_tracking: bool = False
    enable_tokenizer_info_endpoint: bool = False
    served_model_name_file: str | None = None
    vllm_metrics: bool = False
    show_hidden_metrics_for_version: str | None = None
    step_work: StepWork | None = None
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
    fingerprint_mode: str = "weights"
    fingerprint_value: str | None = None
    log_error_stack: bool = False
    custom_histogram_buckets: dict[str, list[float]] = {}
    enable_log_requests: bool = False
    max_log_len: int | None = None
    enable_log_outputs: bool = False
    enable_log_deltas: bool = False
    sse_keep_alive_interval: float = 0.0
    shutdown_timeout: float = 5.0
    api_server_count: int = 1
    max_callback_ms: float | None = None
    limits: ServerLimits = ServerLimits()
    answers: AnswerSettings = AnswerSettings()
    journal: JournalSettings | None = None
    receipts: ReceiptSettings | None = None
    recording: RecordSettings | None = None
    batches: BatchSettings | None = None
    default_service_tier: str = "default"
    quotes: bool = False
    prefill_servers: tuple[str, ...] = ()
    tool_servers: tuple[str, ...] = ()
    remote: RemoteSettings | None = None
    num_servers: int = 1
    is_one_of_several: bool = False
    node_rank: int = 0
    apis: tuple[ResolvedPlugin, ...] | None = None
    adapters: AdapterSettings | None = None
    media_refusal: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """Return all keys. The position of a key is the number of its tenant."""
        return self.api_keys + self.admin_api_keys
