"""From what a user asks to what the engine runs.

Owns: tokenization of prompts, every check of a request against the model, and the seed of each request. Never does:
templates, queues, output. Called by: `LLM` and `AsyncEngine`, before a request enters the engine.
"""

from __future__ import annotations

import random
import secrets
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from core.api.config import ModelConfig
from core.api.errors import RequestError, nearest
from core.api.messages import EngineRequest
from core.api.sampling_params import MAX_SEED, SamplingParams
from core.engine.request_terms import LENIENT, RequestTerms
from core.tokens.tokenizer import Tokenizer

MAX_N = 128
"""Most completions that one request may ask for."""

PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")

PromptInput = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or {"prompt": text} / {"prompt_token_ids": ids}, with an optional `cache_salt`."""


@dataclass(slots=True)
class ProcessedInput:
    """A request that the engine can run: `prompt` is the text if there was one; `requests` has one entry a choice."""

    prompt: str | None
    requests: list[EngineRequest]


@dataclass(slots=True)
class Prompt:
    """A prompt taken apart."""

    text: str | None
    token_ids: list[int]
    cache_salt: str | None = None


def check_unicode(param: str, text: str) -> None:
    """Raises RequestError for half of a surrogate pair, which a Python string may hold, but no message and no hash."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{param} holds {text[error.start]!r} at character {error.start}, which is half of a character and cannot be "
            "encoded as UTF-8; send whole characters.",
            param=param,
        ) from error


class InputProcessor:
    """Checks and translates requests for one model. tokenizer: None serves token ids only."""

    def __init__(self, model: ModelConfig, tokenizer: Tokenizer | None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        limit = model.generation.get("max_new_tokens")
        self._server_limit = model.max_model_len if limit is None else int(limit)
        self._random = None if model.seed is None else random.Random(model.seed)

    def process(
        self,
        request_id: str,
        prompt: PromptInput,
        params: SamplingParams,
        terms: RequestTerms = LENIENT,
        *,
        deadline: float = 0.0,
        arrival_time: float | None = None,
    ) -> ProcessedInput:
        """Check a request and split it into its choices. Raises RequestError with the field at fault.

        deadline:     monotonic seconds at which it ends; 0.0: never.
        arrival_time: seconds since the epoch; None is now.
        """
        arrival = time.time() if arrival_time is None else arrival_time
        check_unicode("request_id", request_id)
        check_unicode("user", terms.user)
        self._check_params(params)
        parsed = self.parse(prompt)
        check_unicode("cache_salt", parsed.cache_salt or "")
        token_ids = self._truncate(parsed.token_ids, params)
        self._check_prompt(token_ids)
        resolved = self._resolve_length(len(token_ids), params, terms.strict_length)
        eos = [] if params.ignore_eos else list(self.model.eos_token_ids)
        stops = list(dict.fromkeys([*eos, *(params.stop_token_ids or ())]))
        bad_words = self._bad_words(params)
        allowed = list(dict.fromkeys(params.allowed_token_ids or ()))
        _check_possible(params, allowed, stops, bad_words)
        seed = self._seed(params)
        requests = [
            EngineRequest(
                request_id=request_id,
                choice=choice,
                prompt_token_ids=token_ids,
                params=resolved,
                seed=seed,
                stop_token_ids=stops,
                eos_token_ids=eos,
                bad_words_ids=bad_words,
                allowed_ids=array("q", allowed).tobytes(),
                arrival_time=arrival,
                priority=terms.priority,
                cache_salt=parsed.cache_salt,
                user=terms.user,
                deadline=deadline,
            )
            for choice in range(params.n)
        ]
        return ProcessedInput(parsed.text, requests)

    def parse(self, prompt: PromptInput) -> Prompt:
        """Take a prompt apart and tokenize its text. With both text and token ids, the ids count."""
        if isinstance(prompt, str):
            return Prompt(prompt, self._encode(prompt))
        if isinstance(prompt, Mapping):
            return self._parse_mapping(prompt)
        if isinstance(prompt, Sequence):
            return Prompt(None, self._token_ids(prompt))
        raise RequestError(
            f"The prompt is a {type(prompt).__name__}; expected a string, a list of token ids, or a dictionary with "
            "'prompt' or 'prompt_token_ids'.",
            param="prompt",
        )

    def _parse_mapping(self, prompt: Mapping[str, Any]) -> Prompt:
        for key in prompt:
            if key not in PROMPT_KEYS:
                raise RequestError(
                    f"The prompt has the key {key!r}; expected one of {', '.join(PROMPT_KEYS)}."
                    f"{nearest(str(key), PROMPT_KEYS)}",
                    param="prompt",
                )
        text, token_ids, salt = prompt.get("prompt"), prompt.get("prompt_token_ids"), prompt.get("cache_salt")
        if text is not None and not isinstance(text, str):
            raise RequestError(f"'prompt' is a {type(text).__name__}; expected a string.", param="prompt")
        if salt is not None and not (isinstance(salt, str) and salt):
            raise RequestError(f"cache_salt is {salt!r}; expected a non-empty string.", param="cache_salt")
        if token_ids is not None:
            return Prompt(text, self._token_ids(token_ids), salt)
        if text is None:
            raise RequestError("The prompt has neither 'prompt' nor 'prompt_token_ids'; give one.", param="prompt")
        return Prompt(text, self._encode(text), salt)

    def _encode(self, text: str) -> list[int]:
        return self._need_tokenizer("a text prompt", "prompt").encode(text)

    def _need_tokenizer(self, what: str, param: str) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                f"The model has no tokenizer, so {what} cannot be used; pass token ids, or name one with --tokenizer.",
                param=param,
            )
        return self.tokenizer

    def _token_ids(self, token_ids: Any) -> list[int]:
        """The ids as a list of Python integers, each checked against the vocabulary."""
        param = "prompt_token_ids"
        if isinstance(token_ids, str | bytes) or not isinstance(token_ids, Sequence):
            raise RequestError(f"{param} is a {type(token_ids).__name__}; expected a list of integers.", param=param)
        ids = list(token_ids)
        for position, token in enumerate(ids):
            if type(token) is not int:
                raise RequestError(f"{param}[{position}] is {token!r}; expected an integer token id.", param=param)
        self._check_ids(param, ids)
        return ids

    def _check_ids(self, param: str, ids: Sequence[int]) -> None:
        if ids and (min(ids) < 0 or max(ids) >= self.model.vocab_size):
            wrong = next(token for token in ids if not 0 <= token < self.model.vocab_size)
            raise RequestError(
                f"{param} holds the token id {wrong}; the vocabulary of {self.model.served_names[0]!r} goes from 0 to "
                f"{self.model.vocab_size - 1}.",
                param=param,
            )

    def _check_prompt(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise RequestError("The prompt is empty; give at least one token.", param="prompt")
        limit = self.model.max_model_len
        if len(token_ids) > limit - 1:
            raise RequestError(
                f"The prompt has {len(token_ids)} tokens, but at most {limit - 1} fit: the context holds {limit} tokens, "
                "one of them for output. Shorten the prompt, set truncate_prompt_tokens, or raise --max-model-len.",
                param="prompt",
                code="context_length_exceeded",
            )
        self._check_ids("prompt", token_ids)

    def _truncate(self, token_ids: list[int], params: SamplingParams) -> list[int]:
        keep = params.truncate_prompt_tokens
        if keep is None:
            return token_ids
        if keep == 0:
            raise RequestError(
                "truncate_prompt_tokens is 0, which leaves no prompt; use -1 for as many tokens as fit.",
                param="truncate_prompt_tokens",
            )
        if keep == -1:
            keep = max(1, self.model.max_model_len - (params.max_tokens or 1))
        return token_ids[-keep:]

    def _resolve_length(self, prompt_len: int, params: SamplingParams, strict: bool) -> SamplingParams:
        """The parameters with `max_tokens` as an integer that fits the context and the checkpoint's own limit."""
        room = self.model.max_model_len - prompt_len
        wanted = room if params.max_tokens is None else params.max_tokens
        if strict and wanted > room:
            raise RequestError(
                f"max_tokens is {wanted}, but after a prompt of {prompt_len} tokens only {room} of the context's "
                f"{self.model.max_model_len} are left. Lower max_tokens, shorten the prompt, or raise --max-model-len.",
                param="max_tokens",
                code="context_length_exceeded",
            )
        if params.min_tokens > min(room, self._server_limit):
            raise RequestError(
                f"min_tokens is {params.min_tokens}, but after a prompt of {prompt_len} tokens at most "
                f"{min(room, self._server_limit)} can follow; lower it or shorten the prompt.",
                param="min_tokens",
            )
        most = min(wanted, room, self._server_limit)
        return msgspec.structs.replace(params, max_tokens=most, allowed_token_ids=None)

    def _check_params(self, params: SamplingParams) -> None:
        if not isinstance(params, SamplingParams):
            raise RequestError(
                f"sampling_params is a {type(params).__name__}; expected SamplingParams.", param="sampling_params"
            )
        params.verify()
        if params.n > MAX_N:
            raise RequestError(f"n is {params.n}; expected at most {MAX_N}.", param="n")
        most = self.model.max_logprobs
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(params, name)
            if wanted is not None and most != -1 and (wanted > most or wanted == -1):
                raise RequestError(
                    f"{name} is {wanted}; this engine gives at most {most}. Ask for fewer, or raise --max-logprobs.",
                    param=name,
                )
        self._check_ids("stop_token_ids", params.stop_token_ids or ())
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        self._check_ids("logit_bias", list(params.logit_bias or ()))
        for stop in params.stop_strings:
            check_unicode("stop", stop)
        if params.stop_strings:
            self._need_tokenizer("a stop string", "stop")

    def _bad_words(self, params: SamplingParams) -> list[list[int]]:
        """Each bad word as it is tokenized at the start of a text and after a space."""
        if not params.bad_words:
            return []
        tokenizer = self._need_tokenizer("a bad word", "bad_words")
        check_unicode("bad_words", "".join(params.bad_words))
        texts = [start + word.lstrip() for word in params.bad_words for start in ("", " ")]
        found = dict.fromkeys(tuple(ids) for ids in tokenizer.encode_batch(texts, add_special_tokens=False))
        found.pop((), None)
        for ids in found:
            self._check_ids("bad_words", ids)
        return [list(ids) for ids in found]

    def _seed(self, params: SamplingParams) -> int:
        if params.seed is not None:
            return params.seed & MAX_SEED
        return secrets.randbits(64) if self._random is None else self._random.getrandbits(64)


def _check_possible(
    params: SamplingParams, allowed: Sequence[int], stops: Sequence[int], bad_words: Sequence[Sequence[int]]
) -> None:
    """Raise RequestError when the request itself rules out every token at its first position."""
    if not allowed:
        return
    ruled_out = {word[0] for word in bad_words if len(word) == 1}
    names = "bad_words"
    if params.min_tokens:
        ruled_out.update(stops)
        names = "stop tokens before min_tokens, and bad_words,"
    if ruled_out.issuperset(allowed):
        raise RequestError(
            f"allowed_token_ids leaves nothing to sample: {names} rule out every token in it; allow others.",
            param="allowed_token_ids",
        )
