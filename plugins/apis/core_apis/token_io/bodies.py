"""The kinds of bodies that split tokens from texts: rendered requests, token ids to continue, token ids to read back.

Owns: their rows and their preparation. Never does: run the engine. Called by: `core_apis.apis`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec

from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core.api.structured_outputs import StructuredOutputsParams
from core_apis.body_kinds import BodyKind, json_of
from core_apis.openai_bodies import prepare_completion
from core_apis.prepare.amounts import check_amount, check_choices
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import AsCompletion, PreparedChat, PreparedCompletion, Prompt, WrittenAnswer
from core_apis.protocol.chat import ChatRequest
from core_apis.protocol.completions import CompletionRequest
from core_apis.protocol.sampling import GenerationRequest, check_list
from core_apis.token_io.forms import DerenderChat, DerenderCompletion, GenerateRequest, GivenAnswer
from core_formats.server_limits import ServerLimits
from core_grammars.spec import as_text

UNSERVED: Final = {
    "features": "send pictures to /v1/chat/completions",
    "content_parts": "send pictures to /v1/chat/completions",
    "ec_transfer_params": "a server does not exchange the rows of pictures with others",
    "reasoning_parser_kwargs": "what /v1/chat/completions/render answers holds the constraint of the answer already",
}
"""Fields that are refused unless they are null or empty."""
LISTS: Final = ("stop", "stop_token_ids", "bad_words", "logit_bias", "extra_args")


class PreparedTokens(AsCompletion):
    """Token ids to continue, ready for the engine. asked: the body without its prompt."""

    asked: GenerateRequest


class ReadChat(msgspec.Struct):
    """Token ids to read as the answer of a chat."""

    chat: PreparedChat
    given: GivenAnswer


class ReadCompletion(msgspec.Struct):
    """Token ids to read as the answers of a completion, one entry a prompt."""

    completion: PreparedCompletion
    given: list[GivenAnswer]


def prepare_tokens(preparation: Preparation, body: GenerateRequest) -> PreparedTokens:
    """Prepare a body of /inference/v1/generate for the engine. Raises RequestError."""
    model = preparation.check_model(body.model)
    for name, way_out in UNSERVED.items():
        if getattr(body, name):
            raise RequestError(f"{name} is not served: {way_out}; leave it out.", param=name)
    if not body.token_ids:
        raise RequestError("token_ids is empty; give at least one token.", param="token_ids", code="empty_prompt")
    shows_text = body.output_mode == "text"
    if shows_text and preparation.tokenizer.refusal:
        raise RequestError(preparation.tokenizer.refusal, param="output_mode")
    params = _params(preparation, body, shows_text)
    request = CompletionRequest(
        model=body.model,
        n=params.n,
        stream=body.stream,
        stream_options=body.stream_options,
        cache_salt=body.cache_salt,
        priority=body.priority,
        request_id=body.request_id,
        kv_transfer_params=body.kv_transfer_params,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        return_token_ids=True,
    )
    request.check(preparation.settings.limits)
    check_choices(preparation.settings, [body.token_ids], params.n)
    ids = preparation.texts.fitting(body.token_ids, params.truncate_prompt_tokens)
    check_amount(preparation.settings, params, [len(ids)])
    body.token_ids, body.sampling_params = [], {}
    names = {"prompt": "token_ids", "max_tokens": "sampling_params"}
    return PreparedTokens(PreparedCompletion(request, model, params, [Prompt(None, ids)], names), body)


def _params(preparation: Preparation, body: GenerateRequest, shows_text: bool) -> SamplingParams:
    """Return the sampling parameters of a body over the checkpoint's own. Raises RequestError."""
    given = {name: value for name, value in body.sampling_params.items() if name not in ("output_kind", "detokenize")}
    filled = {"max_tokens": None, **preparation.settings.defaults, **given}
    try:
        params = msgspec.convert(filled, SamplingParams, str_keys=True)
    except msgspec.ValidationError as error:
        raise RequestError(f"sampling_params: {error}.", param="sampling_params") from None
    _check_lists(params, preparation.settings.limits, preparation.settings.vocab_size)
    params.detokenize = shows_text or bool(params.stop_strings)
    params.output_kind = GenerationRequest(stream=body.stream).shared_params({}).output_kind
    if params.structured_outputs is not None:
        params.structured_outputs = as_text(params.structured_outputs, preparation.settings.max_grammar_size)
    return params


def _check_lists(params: SamplingParams, limits: ServerLimits, vocab_size: int) -> None:
    for name in LISTS:
        check_list(name, getattr(params, name), limits.max_list_length)
    if len(params.allowed_token_ids or ()) > vocab_size:
        raise RequestError(
            f"allowed_token_ids has more entries than there are tokens ({vocab_size}).", param="allowed_token_ids"
        )


def rendered_chat(preparation: Preparation, body: ChatRequest) -> WrittenAnswer:
    """Return what a chat becomes before the engine, as a body of /inference/v1/generate. Raises RequestError."""
    prepared = preparation.prepare_chat(body)
    return WrittenAnswer(msgspec.json.encode(_rendered(prepared)[0]))


def rendered_completion(preparation: Preparation, body: CompletionRequest) -> WrittenAnswer:
    """Return what a completion becomes before the engine, one entry a prompt. Raises RequestError."""
    return WrittenAnswer(msgspec.json.encode(_rendered(prepare_completion(preparation, body))))


def _rendered(prepared: PreparedChat | PreparedCompletion) -> list[dict[str, Any]]:
    body = prepared.body
    if body.kv_transfer_params is not None and body.kv_transfer_params.asked() is not None:
        raise RequestError(
            "kv_transfer_params is not rendered; send the request to the API itself, or leave it out.",
            param="kv_transfer_params",
        )
    params = {name: _plain(getattr(prepared.params, name)) for name in SamplingParams.__struct_fields__}
    shown = {name: value for name, value in params.items() if value is not None and name not in NOT_RENDERED}
    rendered: list[dict[str, Any]] = []
    for prompt in prepared.prompts:
        if prompt.pictures or prompt.embeds is not None:
            raise RequestError(
                "Pictures and embeddings are more than token ids; send this request to /v1/chat/completions or "
                "/v1/completions.",
                param="messages" if prompt.pictures else "prompt_embeds",
            )
        rendered.append(
            {
                "request_id": body.request_id or uuid4().hex,
                "token_ids": prompt.token_ids,
                "sampling_params": shown,
                "model": prepared.model,
                "stream": bool(body.stream),
                "stream_options": body.stream_options,
                "cache_salt": body.cache_salt,
                "priority": body.priority or 0,
            }
        )
    return rendered


NOT_RENDERED: Final = ("output_kind", "detokenize")


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value) if isinstance(value, StructuredOutputsParams) else value


def read_chat(preparation: Preparation, body: DerenderChat) -> ReadChat:
    """Prepare token ids to be read as the answer of a chat. Raises RequestError."""
    body.chat_request.model = body.model or body.chat_request.model
    num_choices = body.chat_request.n or 1
    _check_indices(preparation, [body.generate_response], num_choices)
    return ReadChat(preparation.prepare_chat(body.chat_request), body.generate_response)


def read_completion(preparation: Preparation, body: DerenderCompletion) -> ReadCompletion:
    """Prepare token ids to be read as the answers of a completion. Raises RequestError."""
    request = body.completion_request
    request.model = body.model or request.model
    _check_indices(preparation, body.generate_responses, request.n or 1)
    prepared = prepare_completion(preparation, request)
    if len(prepared.prompts) != len(body.generate_responses):
        raise RequestError(
            f"generate_responses has {len(body.generate_responses)} entries; expected one for each prompt of "
            f"completion_request ({len(prepared.prompts)}).",
            param="generate_responses",
        )
    return ReadCompletion(prepared, body.generate_responses)


def _check_indices(preparation: Preparation, given: Sequence[GivenAnswer], num_choices: int) -> None:
    """Refuse answers that are not those of the request, and tokens that the model does not have."""
    size = preparation.settings.vocab_size
    if preparation.tokenizer.refusal:
        raise RequestError(preparation.tokenizer.refusal, param="generate_response")
    for answer in given:
        indices = sorted(choice.index for choice in answer.choices)
        if indices != list(range(num_choices)):
            raise RequestError(
                f"The choices have the indices {indices[:10]}; expected 0 to {num_choices - 1}, each once.",
                param="generate_response",
            )
        for choice in answer.choices:
            if max(choice.token_ids, default=0) >= size:
                raise RequestError(
                    f"Token id {max(choice.token_ids)} is outside the vocabulary; expected 0 to {size - 1}.",
                    param="generate_response",
                )


BODIES: Final = (
    BodyKind(name="tokens", decode=json_of(GenerateRequest), prepare=prepare_tokens, result=PreparedTokens),
    BodyKind(
        name="chat render", decode=json_of(ChatRequest), prepare=rendered_chat, result=WrittenAnswer, renders=True
    ),
    BodyKind(
        name="completion render",
        decode=json_of(CompletionRequest),
        prepare=rendered_completion,
        result=WrittenAnswer,
    ),
    BodyKind(name="chat read", decode=json_of(DerenderChat), prepare=read_chat, result=ReadChat, renders=True),
    BodyKind(
        name="completion read", decode=json_of(DerenderCompletion), prepare=read_completion, result=ReadCompletion
    ),
)
