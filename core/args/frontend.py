"""Arguments about the HTTP server. Owns: declarations only. Called by: schema."""

from typing import Annotated

import msgspec

from core.args.arg import Arg

LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")
_TOOLS = "tool calls are not available"
_TLS = "clients' certificates are not asked for"


class FrontendArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Server."""

    config: Annotated[str | None, Arg("YAML file with arguments; the command line wins over it.")] = None
    host: Annotated[str, Arg("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Arg("Port to listen on.", ge=0, le=65535)] = 8000
    api_key: Annotated[
        list[str] | None,
        Arg(
            "Bearer keys, one of which every request must carry, but for /health, /ping, /version, /metrics and the "
            "documentation pages. CORE_API_KEY in the environment gives one key where no other is given.",
            secret=True,
        ),
    ] = None
    chat_template: Annotated[str | None, Arg("Chat template: a file, or the template itself.")] = None
    chat_template_content_format: Annotated[
        str,
        Arg(
            "A template sees a message's content as text or as a list of parts; auto reads the template.",
            choices=("auto", "string", "openai"),
            unserved="the template itself decides",
        ),
    ] = "auto"
    response_role: Annotated[str, Arg("Role of generated messages.")] = "assistant"
    allowed_origins: Annotated[list[str], Arg("CORS: origins.")] = msgspec.field(default_factory=lambda: ["*"])
    allowed_methods: Annotated[list[str], Arg("CORS: methods.")] = msgspec.field(default_factory=lambda: ["*"])
    allowed_headers: Annotated[list[str], Arg("CORS: headers.")] = msgspec.field(default_factory=lambda: ["*"])
    allow_credentials: Annotated[bool, Arg("CORS: allow credentials.")] = False
    root_path: Annotated[str | None, Arg("Path prefix behind a proxy.")] = None
    middleware: Annotated[
        list[str] | None, Arg("ASGI middleware to add, by import path.", unserved="middleware cannot be added")
    ] = None
    ssl_keyfile: Annotated[str | None, Arg("TLS key.")] = None
    ssl_certfile: Annotated[str | None, Arg("TLS certificate.")] = None
    ssl_ca_certs: Annotated[str | None, Arg("TLS authorities for clients' certificates.", unserved=_TLS)] = None
    ssl_cert_reqs: Annotated[
        int, Arg("Clients' certificates: 0 not asked for, 1 optional, 2 required.", ge=0, le=2, unserved=_TLS)
    ] = 0
    enable_ssl_refresh: Annotated[
        bool, Arg("Read TLS files again when they change.", unserved="TLS files are read once")
    ] = False
    disable_fastapi_docs: Annotated[bool, Arg("No OpenAPI schema and documentation pages.")] = False
    uvicorn_log_level: Annotated[str, Arg("Log level of the HTTP server.", choices=LOG_LEVELS)] = "info"
    disable_uvicorn_access_log: Annotated[bool, Arg("No access log.")] = False
    log_config_file: Annotated[
        str | None, Arg("JSON file with the configuration of all logs.", unserved="logs cannot be configured by a file")
    ] = None
    max_log_len: Annotated[int | None, Arg("Most characters or token ids of a prompt in the log.", ge=0)] = None
    enable_request_id_headers: Annotated[bool, Arg("Answer with an X-Request-Id header.")] = False
    enable_prompt_tokens_details: Annotated[bool, Arg("Report cached prompt tokens in the usage.")] = False
    enable_force_include_usage: Annotated[bool, Arg("Report the usage in every response, streamed ones too.")] = False
    return_tokens_as_token_ids: Annotated[bool, Arg("Write tokens in log probabilities as token_id:N.")] = False
    enable_server_load_tracking: Annotated[
        bool, Arg("Count running requests for the load endpoint.", unserved="there is no such endpoint")
    ] = False
    enable_tokenizer_info_endpoint: Annotated[
        bool, Arg("Offer the tokenizer and chat template to clients.", unserved="there is no such endpoint")
    ] = False
    enable_auto_tool_choice: Annotated[
        bool, Arg("Let the model decide when to call a tool; needs --tool-call-parser.", unserved=_TOOLS)
    ] = False
    tool_call_parser: Annotated[str | None, Arg("What reads tool calls in the output, by name.", unserved=_TOOLS)] = (
        None
    )
    tool_parser_plugin: Annotated[str, Arg("Python file with a further parser of tool calls.", unserved=_TOOLS)] = ""
    lora_modules: Annotated[
        list[str] | None,
        Arg("Adapters to load at start: NAME=PATH, or JSON.", unserved="LoRA adapters are not available"),
    ] = None
    api_server_count: Annotated[
        int, Arg("Number of API server processes.", short=("asc",), ge=1, unserved="one API server is started")
    ] = 1
    headless: Annotated[bool, Arg("Run engines without an API server.", unserved="one node runs both")] = False
    disable_frontend_multiprocessing: Annotated[
        bool,
        Arg("Run API server and engine in one process.", unserved="the engine runs in a process of its own"),
    ] = False
