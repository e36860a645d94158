"""The model as an engine runs it: a part of the resolved configuration.

Owns: `ModelConfig`. Never does: resolve or validate. Called by: `core.api.config`, where everybody takes it from.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from core.api.logprobs_mode import LogprobsMode
from core.api.pooling import PoolingConfig


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The model as it will run.

    model:          reference given by the user (path, or hub name).
    served_names:   names that the server answers to; the first is reported.
    tokenizer:      directory or file that the tokenizer comes from; None is the checkpoint itself.
    tokenizer_mode: which files it is made from (`auto`, `hf`, `slow`, `mistral`).
    skip_tokenizer: there is none, whatever the checkpoint holds.
    allow_control_tokens: contents of messages may hold control tokens, see `core_tokens.content_encoding`.
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
    embedding_size: numbers of an embedding in a prompt; 0: prompts have none.
    """

    model: str
    served_names: tuple[str, ...]
    tokenizer: str | None = None
    tokenizer_mode: str = "auto"
    skip_tokenizer: bool = False
    allow_control_tokens: bool = False
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
    embedding_size: int = 0
