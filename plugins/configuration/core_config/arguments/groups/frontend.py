"""Arguments about the HTTP server. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

import msgspec

from core.args.arg import Arg, ArgumentGroup

LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


class FrontendArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Server."""

    place: ClassVar[int] = 140
    for_servers: ClassVar[bool] = True

    config: Annotated[str | None, Arg("YAML file with arguments; the command line wins over it.")] = None
    host: Annotated[str, Arg("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Arg("Port to listen on.", ge=0, le=65535)] = 8000
    uds: Annotated[
        str | None,
        Arg("Path of a unix socket to listen on, in place of --host and --port; the umask says who may connect."),
    ] = None
    api_key: Annotated[
        list[str] | None,
        Arg(
            "Bearer keys, one of which every request must carry, but for /health, /ping, /ready, /live, /version, /metrics "
            "and the documentation pages. CORE_API_KEY in the environment gives one key where no other is given.",
            secret=True,
        ),
    ] = None
    admin_api_key: Annotated[
        list[str] | None,
        Arg(
            "Keys of the operator, who may use every path. With them, paths that concern all tenants or show the "
            "configuration (/sleep, /pause, /update_weights, /collective_rpc, /start_profile, /reset_prefix_cache, "
            "/server_info and the like) answer everybody else with 403. Unset: the holder of the only --api-key is the "
            "operator, with several of them nobody is. CORE_ADMIN_API_KEY in the environment gives one key where no other is "
            "given.",
            secret=True,
        ),
    ] = None
    public_prompt: Annotated[
        list[str] | None,
        Arg(
            "Files with prompts whose cached beginning all API keys share: a system prompt (.txt), or the fields of a chat's "
            "body before the first question (.json: messages, tools). What else is cached each key has for itself.",
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        Arg(
            "Chat template: a file, the template itself, or the name of one: of the checkpoint, or of ours, such as chatml."
        ),
    ] = None
    chat_template_content_format: Annotated[
        str,
        Arg(
            "How a template gets the content of a message: string: as text; openai: as a list of parts; auto: as the template "
            "reads it.",
            choices=("auto", "string", "openai"),
        ),
    ] = "auto"
    default_chat_template_kwargs: Annotated[
        dict[str, Any] | None,
        Arg(
            "Variables of the chat template for requests that do not set them in chat_template_kwargs, such as "
            '{"enable_thinking": false}.'
        ),
    ] = None
    reasoning_effort_map: Annotated[
        dict[str, Any] | None,
        Arg(
            'What a template gets as reasoning_effort for the effort that a request names, such as {"minimal": "low"}; others '
            "stay as they are."
        ),
    ] = None
    response_role: Annotated[str, Arg("Role of generated messages.")] = "assistant"
    allowed_origins: Annotated[list[str], Arg("CORS: origins.")] = msgspec.field(default_factory=lambda: ["*"])
    allowed_methods: Annotated[list[str], Arg("CORS: methods.")] = msgspec.field(default_factory=lambda: ["*"])
    allowed_headers: Annotated[list[str], Arg("CORS: headers.")] = msgspec.field(default_factory=lambda: ["*"])
    allow_credentials: Annotated[bool, Arg("CORS: allow credentials.")] = False
    shutdown_timeout: Annotated[
        float,
        Arg(
            "Seconds that running requests have to end after SIGTERM or SIGINT, while new ones get 503; a second signal ends "
            "at once.",
            ge=0,
        ),
    ] = 5.0
    api_server_count: Annotated[
        int,
        Arg(
            "Processes that answer HTTP requests on one port, for one engine. With more than one, limits of connections and "
            "queues are divided among them, and no responses of /v1/responses are kept.",
            ge=1,
            le=64,
            short=("asc",),
        ),
    ] = 1
    root_path: Annotated[str | None, Arg("Path prefix behind a proxy.")] = None
    ssl_keyfile: Annotated[str | None, Arg("TLS key.")] = None
    ssl_certfile: Annotated[str | None, Arg("TLS certificate.")] = None
    ssl_ca_certs: Annotated[str | None, Arg("Certificates of those who sign certificates of clients.")] = None
    ssl_cert_reqs: Annotated[
        int,
        Arg("Whether clients need a certificate: 0 no, 1 it is checked when there is one, 2 yes.", choices=(0, 1, 2)),
    ] = 0
    ssl_ciphers: Annotated[
        str | None, Arg("Ciphers of TLS up to 1.2, in OpenSSL's notation; unset: Python's choice.")
    ] = None
    enable_ssl_refresh: Annotated[
        bool, Arg("Read the TLS files again when they change; connections that are open keep the old ones.")
    ] = False
    middleware: Annotated[
        list[str] | None,
        Arg(
            "ASGI middleware of yours around all requests, MODULE.NAME or MODULE:NAME: a class, or a coroutine function of "
            "(request, call_next). The last one is the outermost."
        ),
    ] = None
    sse_keep_alive_interval: Annotated[
        float,
        Arg(
            "Seconds of silence after which a stream sends a comment, so that no proxy takes it for dead; 0: never.",
            ge=0,
            le=3600,
        ),
    ] = 0.0
    enable_server_load_tracking: Annotated[
        bool, Arg("Serve GET /load: the prompts of this process that wait or run.")
    ] = False
    enable_log_outputs: Annotated[
        bool, Arg("Log each answer when it ends: its text, its number of tokens and why it ended.")
    ] = False
    enable_log_deltas: Annotated[
        bool, Arg("With --enable-log-outputs: log every piece of an answer as well, as it is streamed.")
    ] = False
    enable_tokenizer_info_endpoint: Annotated[
        bool, Arg("Serve GET /tokenizer_info: special tokens, added tokens and the chat template.")
    ] = False
    served_model_name_file: Annotated[
        str | None,
        Arg(
            "File with further names that the API answers to, one a line; it is read again when it changes, so names come and "
            "go while the server runs."
        ),
    ] = None
    disable_fastapi_docs: Annotated[bool, Arg("No OpenAPI schema and documentation pages.")] = False
    disable_ui: Annotated[bool, Arg("No page at /, and none of its data.")] = False
    uvicorn_log_level: Annotated[str, Arg("Log level of the HTTP server.", choices=LOG_LEVELS)] = "info"
    disable_uvicorn_access_log: Annotated[bool, Arg("No access log.")] = False
    enable_request_id_headers: Annotated[bool, Arg("Answer with an X-Request-Id header.")] = False
    enable_prompt_tokens_details: Annotated[bool, Arg("Report cached prompt tokens in the usage.")] = False
    enable_force_include_usage: Annotated[bool, Arg("Report the usage in every response, streamed ones too.")] = False
    fingerprint_mode: Annotated[
        str,
        Arg(
            "What `system_fingerprint` of answers says: weights: the version of weights that were replaced; hash: the version "
            "of the engine and a hash of all that its numbers depend on; full: with the number of engines between them; "
            "custom: --fingerprint-value; none: nothing.",
            choices=("weights", "full", "hash", "custom", "none"),
            since="0.2.0",
        ),
    ] = "weights"
    fingerprint_value: Annotated[
        str | None, Arg("`system_fingerprint` with --fingerprint-mode custom.", since="0.2.0")
    ] = None
    return_tokens_as_token_ids: Annotated[bool, Arg("Write tokens in log probabilities as token_id:N.")] = False
