"""The resolved configuration of one engine: what every part is built from.

Owns: the frozen Structs that go, as one message, to the engine process. Never does: resolve or validate
(`core.config` does). Called by: config (writes), engine, scheduler, executor, serving (read).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The model as it will run.

    model:          reference given by the user (path, or hub name).
    served_names:   names that the server answers to; the first is reported.
    tokenizer:      directory or file that the tokenizer comes from; None is the checkpoint itself.
    dtype:          `bfloat16`, `float16` or `float32`: precision of matrix inputs and of dense weights.
    max_model_len:  prompt plus output tokens of one request.
    vocab_size, hf_config: from the checkpoint (after overrides).
    max_logprobs:   largest number of logprobs a request may ask for; -1: the whole vocabulary.
    seed:           seeds unseeded requests drawn by `LLM`; None: from the system.
    eos_token_ids:  tokens that end a sequence.
    generation:     default sampling parameters from the checkpoint.
    enforce_eager:  run the layers' own code in every step instead of replaying a recorded one.
    """

    model: str
    served_names: tuple[str, ...]
    tokenizer: str | None = None
    dtype: str = "bfloat16"
    max_model_len: int = 2048
    vocab_size: int = 0
    hf_config: dict[str, Any] = {}
    max_logprobs: int = 20
    seed: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    generation: dict[str, Any] = {}
    enforce_eager: bool = False


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache. num_blocks: None means as many as `memory_bytes` holds. dtype: `bfloat16`, `float16`, `float32`."""

    block_size: int = 16
    dtype: str = "bfloat16"
    num_blocks: int | None = None
    memory_bytes: int = 0
    enable_prefix_caching: bool = True
    hash_algorithm: str = "sha256"


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and policy of the scheduler. All in tokens or sequences."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int = 2048
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: Literal["fcfs", "priority"] = "fcfs"
    num_speculative_tokens: int = 0


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

    kernels:   kernel providers in order of preference. attention: backend for each layer kind (`full`, `sliding`).
    arguments: by (kind + "." + name): the plugin's own arguments as plain values.
    table:     every plugin named above.
    """

    loader: str
    platform: str
    quantization: str | None = None
    kernels: tuple[str, ...] = ()
    attention: dict[str, str] = {}
    speculative: str | None = None
    arguments: dict[str, dict[str, Any]] = {}
    table: tuple[ResolvedPlugin, ...] = ()


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an engine is built from. device: `cpu`, `cuda:0`, ... disable_log_stats: no periodic log line."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    plugins: PluginChoices
    device: str = "cpu"
    disable_log_stats: bool = False
    use_tqdm_on_load: bool = True


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP server's own settings, as the command line gives them."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    chat_template: str | None = None
    response_role: str = "assistant"
    allowed_origins: tuple[str, ...] = ("*",)
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    root_path: str = ""
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    disable_fastapi_docs: bool = False
    uvicorn_log_level: str = "info"
    disable_uvicorn_access_log: bool = False
    enable_request_id_headers: bool = False
    enable_prompt_tokens_details: bool = False
    enable_force_include_usage: bool = False
    return_tokens_as_token_ids: bool = False
    enable_log_requests: bool = False
    max_log_len: int | None = None
