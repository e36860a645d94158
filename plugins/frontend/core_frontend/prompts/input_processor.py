"""Conversion of a user's request into the engine's form.

Owns: every check of a request against the model, and the seed of each request. Never does: templates, queues, output.
Called by: `LLM` and `AsyncEngine`, before a request enters the engine.
"""

from __future__ import annotations

import random
import secrets
import time
from array import array
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import msgspec

from core.api.config import ModelConfig
from core.api.errors import RequestError
from core.api.messages import EngineRequest
from core.api.sampling_params import MAX_SEED, SamplingParams
from core.api.sequence_record import Scope
from core.api.structured_outputs import CompiledGrammar
from core.engine.token_ids import check_token_ids
from core_frontend.adapters import set_adapter
from core_frontend.api.explanation import Source
from core_frontend.api.pooling_outputs import StepRewards, TextPieces
from core_frontend.api.pooling_params import PoolingParams
from core_frontend.api.sampling_fields import MOST_LISTED
from core_frontend.prompts.bad_words import bad_word_tokens
from core_frontend.prompts.pooling_input import PoolingInput
from core_frontend.prompts.prompt_parser import Prompt, PromptInput, PromptParser, check_unicode, need_tokenizer
from core_frontend.prompts.request_checks import check_compiled, check_continued, check_possible, check_priority
from core_frontend.request_settings import LengthLimit, RequestSettings, request_settings
from core_frontend.request_terms import LENIENT, RequestTerms
from core_observers.receipts.issuer import Issuer
from core_tokens.answer_facts import MOST_SUPPORT, SAMPLING_MASK
from core_tokens.tokenizer import Tokenizer

MAX_N = 128
"""Maximum number of completions of one request."""


@dataclass(slots=True)
class ProcessedInput:
    """A request that the engine can run.

    prompt:   the text, if there was one.
    requests: one entry per choice.
    marks_specials: see `RequestTerms`.
    asked:    facts for the explanation; None: no explanation is wanted.
    receipts: makes its receipt; None: it gets none.
    steps:    which classes of tokens are given; None: all.
    pieces:   the pieces of a text that are pooled one by one, each a choice; None: the text is whole.
    """

    prompt: str | None
    requests: list[EngineRequest]
    marks_specials: bool = False
    asked: RequestSettings | None = None
    receipts: Issuer | None = None
    steps: StepRewards | None = None
    pieces: TextPieces | None = None


class TokenRules(NamedTuple):
    """The tokens that end an answer, and those that it may not contain.

    eos:       end-of-sequence tokens.
    stops:     all tokens that end it.
    bad_words: token sequences that are excluded.
    allowed:   the only allowed tokens, as int64; empty: any.
    """

    eos: list[int]
    stops: list[int]
    bad_words: list[list[int]]
    allowed: bytes


class InputProcessor:
    """The checks and translation of requests for one model.

    tokenizer: None serves token ids only.
    explains:  how much answers may reveal of earlier requests.
    """

    def __init__(self, model: ModelConfig, tokenizer: Tokenizer | None, explains: Scope = "own") -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._explains = explains
        self._prompts = PromptParser(model, tokenizer)
        self._pooling = PoolingInput(model, tokenizer)
        limit = model.generation.get("max_new_tokens")
        self._server_limit = model.max_model_len if limit is None else int(limit)
        self._server_source: Source = "server" if "max_new_tokens" in model.overridden else "generation_config"
        self._random = None if model.seed is None else random.Random(model.seed)

    def process(
        self,
        request_id: str,
        prompt: PromptInput,
        params: SamplingParams | PoolingParams,
        terms: RequestTerms = LENIENT,
        *,
        deadline: float = 0.0,
        arrival_time: float | None = None,
        grammar: CompiledGrammar | None = None,
    ) -> ProcessedInput:
        """Check a request and split it into its choices. Raises RequestError with the invalid field.

        deadline:     monotonic seconds at which it ends; 0.0: never.
        arrival_time: seconds since the epoch; None is now.
        grammar:      compiled from `params.structured_outputs`, if these are given.
        """
        arrival = time.time() if arrival_time is None else arrival_time
        check_unicode("request_id", request_id)
        check_unicode("user", terms.user)
        self._check_explain(terms)
        check_priority(terms.priority)
        if isinstance(params, PoolingParams):
            parsed = self._parse(prompt, terms)
            request = self._pooling.request(request_id, parsed, params, terms, deadline, arrival)
            set_adapter(request, terms.adapter)
            requests, pieces = self._pooling.divided(request)
            return ProcessedInput(parsed.text, requests, steps=self._pooling.steps(request), pieces=pieces)
        return self._to_continue(request_id, prompt, params, terms, deadline, arrival, grammar)

    def _to_continue(
        self,
        request_id: str,
        prompt: PromptInput,
        params: SamplingParams,
        terms: RequestTerms,
        deadline: float,
        arrival: float,
        grammar: CompiledGrammar | None,
    ) -> ProcessedInput:
        """Process a request for text; arguments as in `process`."""
        self._check_params(params)
        check_compiled(params, grammar)
        parsed = self._parse(prompt, terms)
        check_continued(parsed, params)
        token_ids = self._truncate(parsed.token_ids, params)
        self._check_prompt(token_ids)
        num_cut = len(parsed.token_ids) - len(token_ids)
        length = self._length(len(token_ids), params, terms)
        rules = self._token_rules(params, has_grammar=grammar is not None)
        seed = self._seed(params)
        first = EngineRequest(
            request_id=request_id,
            choice=0,
            prompt_token_ids=token_ids,
            params=msgspec.structs.replace(
                params, max_tokens=length.num_tokens, allowed_token_ids=None, structured_outputs=None
            ),
            seed=seed,
            stop_token_ids=rules.stops,
            eos_token_ids=rules.eos,
            bad_words_ids=rules.bad_words,
            allowed_ids=rules.allowed,
            arrival_time=arrival,
            priority=terms.priority,
            cache_salt=parsed.cache_salt,
            user=terms.user,
            deadline=deadline,
            grammar=grammar,
            explain=terms.explain is not None,
            tenant=terms.tenant,
            num_public_tokens=0 if num_cut else _num_public(terms, parsed),
            prompt_embeds=b"" if parsed.embeds is None else parsed.embeds.data,
            edges=[] if num_cut else parsed.edges,
            media=parsed.media,
            flex=terms.flex,
        )
        set_adapter(first, terms.adapter)
        others = [msgspec.structs.replace(first, choice=choice) for choice in range(1, params.n)]
        processed = ProcessedInput(parsed.text, [first, *others], terms.marks_specials, receipts=terms.receipts)
        if terms.explain is not None:
            processed.asked = request_settings(params, terms, terms.explain, length, seed, num_cut, deadline)
        return processed

    def _parse(self, prompt: PromptInput, terms: RequestTerms) -> Prompt:
        parsed = self._prompts.parse(prompt, copies=not terms.gives_prompt)
        check_unicode("cache_salt", parsed.cache_salt or "")
        return parsed

    def _check_explain(self, terms: RequestTerms) -> None:
        if terms.explain is not None and self._explains == "off":
            raise RequestError(
                "explain is asked for, but this engine explains no answers (--explain-answers off); leave it out.",
                param="explain",
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

    def _length(self, prompt_len: int, params: SamplingParams, terms: RequestTerms) -> LengthLimit:
        """Return the limit on the length: `max_tokens` within the context and the checkpoint's own limit, and which of
        them it is.
        """
        room = self.model.max_model_len - prompt_len
        trace = params.trace_decode_token_ids
        if trace is not None:
            return _length_of_trace(len(trace), room)
        wanted = room if params.max_tokens is None else params.max_tokens
        if terms.strict_length and wanted > room:
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
        sources = {} if terms.explain is None else terms.explain.sources
        own = LengthLimit("max_tokens", wanted, sources.get("max_tokens", "default"))
        by_checkpoint = LengthLimit("max_new_tokens", self._server_limit, self._server_source)
        by_context = LengthLimit("max_model_len", room, "context")
        limits = [by_checkpoint, by_context] if params.max_tokens is None else [own, by_checkpoint, by_context]
        return min(limits, key=attrgetter("num_tokens"))

    def _token_rules(self, params: SamplingParams, *, has_grammar: bool) -> TokenRules:
        """Return the token rules. Raises RequestError if they exclude every token."""
        eos, stops = self._stops(params, has_grammar=has_grammar)
        bad_words = self._bad_words(params)
        allowed = list(dict.fromkeys(params.allowed_token_ids or ()))
        check_possible(params, allowed, stops, bad_words)
        return TokenRules(eos, stops, bad_words, array("q", allowed).tobytes())

    def _stops(self, params: SamplingParams, *, has_grammar: bool) -> tuple[list[int], list[int]]:
        """Return the end-of-sequence tokens, and all tokens that end this answer."""
        if params.trace_decode_token_ids is not None:
            return [], []
        # If a grammar allows only the end, an answer must be able to end even with ignore_eos.
        ignores_eos = params.ignore_eos and not has_grammar
        eos = [] if ignores_eos else list(self.model.eos_token_ids)
        stops = list(dict.fromkeys([*eos, *(params.stop_token_ids or ())]))
        return eos, stops

    def _check_params(self, params: SamplingParams) -> None:
        if not isinstance(params, SamplingParams):
            raise RequestError(
                f"sampling_params is a {type(params).__name__}; expected SamplingParams.", param="sampling_params"
            )
        if self.model.pooling is not None:
            raise RequestError(
                "This model gives vectors and no text (--runner pooling): use embed and its like, or start it with "
                "--runner generate if it can."
            )
        params.verify()
        if params.extra_args and not self.model.reads_extra_args:
            raise RequestError(
                "extra_args are given, but nothing here reads them: no logits processor was named with --logits-processors. "
                "Leave them out, or name one.",
                param="extra_args",
            )
        if params.n > MAX_N:
            raise RequestError(f"n is {params.n}; expected at most {MAX_N}.", param="n")
        self._check_logprobs(params)
        self._check_support(params)
        check_token_ids("stop_token_ids", params.stop_token_ids or (), self.model)
        check_token_ids("allowed_token_ids", params.allowed_token_ids or (), self.model)
        check_token_ids("logit_bias", list(params.logit_bias or ()), self.model)
        for stop in params.stop_strings:
            check_unicode("stop", stop)
        check_token_ids("logprob_token_ids", params.logprob_token_ids or (), self.model)
        check_token_ids("trace_decode_token_ids", params.trace_decode_token_ids or (), self.model)
        if params.stop_strings:
            need_tokenizer(self.tokenizer, "a stop string", "stop")

    def _check_logprobs(self, params: SamplingParams) -> None:
        most = self.model.max_logprobs
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(params, name)
            if wanted is not None and most != -1 and (wanted > most or wanted == -1):
                raise RequestError(
                    f"{name} is {wanted}; this engine gives at most {most}. Ask for fewer, or raise --max-logprobs.",
                    param=name,
                )

        listed = params.logprob_token_ids
        if not listed:
            return
        if params.logprobs is None:
            raise RequestError(
                "logprob_token_ids add to log-probabilities; set logprobs, to 0 or more.", param="logprob_token_ids"
            )
        if len(listed) > MOST_LISTED:
            raise RequestError(
                f"logprob_token_ids has {len(listed)} entries; expected at most {MOST_LISTED}. For more, ask for "
                "logprobs=-1, which --max-logprobs -1 allows.",
                param="logprob_token_ids",
            )

    def _check_support(self, params: SamplingParams) -> None:
        """Raise RequestError if the tokens that could come may be as many as the vocabulary has, and each answer tells them."""
        if SAMPLING_MASK not in self.model.tells or params.greedy or params.trace_decode_token_ids is not None:
            return
        if not 1 <= params.top_k <= MOST_SUPPORT:
            raise RequestError(
                f"top_k is {params.top_k}; this engine tells the tokens that could come (--return-sampling-mask), and expects "
                f"1 to {MOST_SUPPORT} above temperature 0.",
                param="top_k",
            )

    def _bad_words(self, params: SamplingParams) -> list[list[int]]:
        """Return the tokens of each bad word, both at the start of a text and after a space."""
        if not params.bad_words:
            return []
        tokenizer = need_tokenizer(self.tokenizer, "a bad word", "bad_words")
        found = bad_word_tokens(tokenizer, params.bad_words)
        for ids in found:
            check_token_ids("bad_words", ids, self.model)
        return found

    def _seed(self, params: SamplingParams) -> int:
        if params.seed is not None:
            return params.seed & MAX_SEED
        return secrets.randbits(64) if self._random is None else self._random.getrandbits(64)


def _num_public(terms: RequestTerms, prompt: Prompt) -> int:
    """Return the number of leading tokens that tenants share; pictures are never shared."""
    first = prompt.media[0].start if prompt.media else terms.num_public_tokens
    return min(terms.num_public_tokens, first)


def _length_of_trace(num_tokens: int, room: int) -> LengthLimit:
    """Return the length of a replayed trace, which is fixed. Raises RequestError if the context has less room."""
    param = "trace_decode_token_ids"
    if num_tokens > room:
        raise RequestError(
            f"{param} has {num_tokens} tokens, but behind the prompt the context has room for {room}; give fewer, or raise "
            "--max-model-len.",
            param=param,
            code="context_length_exceeded",
        )
    return LengthLimit(param, num_tokens, "request")
