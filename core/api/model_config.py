"""The model as an engine runs it: a part of the resolved configuration.

Owns: `ModelConfig`. Never does: resolve or validate. Called by: `core.api.config`, from which all others import it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from core.api.logprobs_mode import LogprobsMode
from core.api.pooling import PoolingConfig


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The model of an engine, with every choice made.

    model:          reference given by the user (path, or hub name).
    served_names:   names that the server answers to; the first is reported.
    tokenizer:      directory or file that the tokenizer comes from; None is the checkpoint itself.
    tokenizer_mode: files that the tokenizer is built from (`auto`, `hf`, `slow`, `mistral`, `deepseek_v32`), or a plugin.
    skip_tokenizer: whether no tokenizer is loaded, even if the checkpoint has one.
    allow_control_tokens: whether contents of messages may contain control tokens, see `core_tokens.content_encoding`.
    dtype:          `bfloat16`, `float16` or `float32`: precision of matrix inputs and of dense weights.
    max_model_len:  prompt plus output tokens of one request.
    vocab_size:     size of the model's vocabulary, as its family reports it.
    hf_config:      configuration from the checkpoint, with overrides applied.
    max_logprobs:   largest number of logprobs a request may ask for; -1: the whole vocabulary.
    logprobs_mode:  kind of numbers that logprobs are.
    tells:          what outputs carry besides tokens: `sampling_mask`, `routed_experts`.
    seed:           seed from which `LLM` draws the seeds of requests without one; None: from the system.
    eos_token_ids:  tokens that end a sequence.
    generation:     default sampling parameters from the checkpoint.
    overridden:     names of sampling parameters in `generation` whose values are the server's own.
    enforce_eager:  run the layers' own code in every step instead of replaying a recording.
    implementation: the layers that run: the engine's own (`core`) or those of `transformers`.
    trust_remote_code: whether layers may be code that comes with the checkpoint.
    numerics:       `fast`, or `reference`: operations in plain torch compute one row at a time.
    pooling:        how hidden states become the answer; None: the model generates text.
    reads_extra_args: whether any plugin of this engine reads the `extra_args` of requests.
    checks_params:  whether the engine checks a request's parameters before the request runs.
    embedding_size: width of an embedding in a prompt; 0: prompts cannot be embeddings.
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
    tells: tuple[str, ...] = ()
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
