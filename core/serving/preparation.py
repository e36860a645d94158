"""From the bytes of a request body to what the engine needs: decoding, checks, templates, tokens.

Owns: these steps, for each kind of body. Never does: read the network, know an engine, or wait: it is plain computation, which
runs in the server's process or in a helper's.
Called by: `core.serving.preparer` (which decides where) and the helper process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from core.api.errors import RequestError, nearest
from core.api.sampling_params import SamplingParams
from core.formats.answer_plan import check_template
from core.formats.conversation_prompts import ConversationPrompts
from core.formats.markers import markers_of
from core.formats.tool_use import ToolUse
from core.grammars.spec import as_text
from core.serving.amounts import check_amount, check_choices
from core.serving.answer_plan import answer_plan
from core.serving.anthropic import chat as anthropic
from core.serving.anthropic.chat import FIELD_NAMES as MESSAGES_NAMES
from core.serving.embedded_prompts import embedded_prompts
from core.serving.field_names import combined, own_names
from core.serving.pooling_preparation import PoolingPreparation
from core.serving.prepared import (
    CountedTokens,
    PreparationSettings,
    PreparedChat,
    PreparedClasses,
    PreparedCompletion,
    PreparedEmbed,
    PreparedEmbedding,
    PreparedHidden,
    PreparedMessages,
    PreparedPooling,
    PreparedRerank,
    PreparedResponse,
    PreparedScore,
    Prompt,
    WrittenAnswer,
)
from core.serving.protocol.anthropic import CountTokensRequest, MessagesRequest
from core.serving.protocol.anthropic_answer import TokenCount
from core.serving.protocol.chat import ChatRequest
from core.serving.protocol.completions import CompletionRequest
from core.serving.protocol.decoding import decode_body
from core.serving.protocol.embed import EmbedRequest
from core.serving.protocol.messages import Conversation
from core.serving.protocol.pairs import RerankRequest, ScoreRequest
from core.serving.protocol.pooling import ClassifyRequest, EmbeddingRequest, PoolingBody, PoolingRequest
from core.serving.protocol.responses import ResponsesRequest, unknown_fields
from core.serving.protocol.sampling import NEUTRAL
from core.serving.protocol.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from core.serving.responses.conversation import Item
from core.serving.responses.items import complete, given_items
from core.serving.responses.kept_items import unpacked
from core.serving.responses.tools import chat_tools
from core.serving.responses.translation import FIELD_NAMES as RESPONSES_NAMES
from core.serving.responses.translation import chat_request, check_history
from core.serving.responses.truncation import shortened
from core.serving.served_names import ServedNames
from core.serving.text_tokens import TextTokens
from core.tokens.chat_template import ChatTemplate, has_answers
from core.tokens.content_encoding import ContentEncoder
from core.tokens.template_limits import Limits
from core.tokens.tokenizer import Tokenizer
from core.tokens.written_text import WrittenText, own_tail, plain

TAIL = 256
"""Characters at the end of a prompt, more than a template writes behind the last message."""

Buffer = bytes | bytearray | memoryview


class Preparation:
    """The steps for one server. tokenizer: of the served model. limits: of rendering templates, where it has its own."""

    def __init__(self, settings: PreparationSettings, tokenizer: Tokenizer, limits: Limits | None = None) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.names = ServedNames(settings.served_names, settings.served_names_file)
        self.template = ChatTemplate(settings.chat_template, tokenizer.special_tokens, settings.tool_template, limits)
        self._prompts = ConversationPrompts(self.template, settings.format)
        self._format = settings.format
        if settings.format is not None:  # as answers need it, which are sent with it
            self._format = msgspec.structs.replace(settings.format, guide=None)
        num_for_output = 1 if settings.pooling is None else 0
        markers = () if settings.format is None else markers_of(settings.format.row)
        contents = ContentEncoder.of(tokenizer, (*self.template.sources, *markers))
        self.texts = TextTokens(tokenizer, contents, settings.max_model_len, settings.max_model_len - num_for_output)
        self._pooled = PoolingPreparation(settings, tokenizer, self.texts, limits)
        self._chat = msgspec.json.Decoder(ChatRequest)
        self._completion = msgspec.json.Decoder(CompletionRequest)
        self._embedding = msgspec.json.Decoder(EmbeddingRequest)
        self._embed = msgspec.json.Decoder(EmbedRequest)
        self._pooling = msgspec.json.Decoder(PoolingRequest)
        self._classify = msgspec.json.Decoder(ClassifyRequest)
        self._score = msgspec.json.Decoder(ScoreRequest)
        self._rerank = msgspec.json.Decoder(RerankRequest)
        self._response = msgspec.json.Decoder(ResponsesRequest)
        self._messages = msgspec.json.Decoder(MessagesRequest)
        self._count_tokens = msgspec.json.Decoder(CountTokensRequest)
        self._fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._tokenize = msgspec.json.Decoder(TokenizeRequest)
        self._detokenize = msgspec.json.Decoder(DetokenizeRequest)

    def run(self, kind: str, data: Buffer) -> Any:
        """The steps for a body of `kind`, a name in `RESULTS`. Raises RequestError."""
        steps: dict[str, Callable[[Buffer], Any]] = {
            "chat": self.chat,
            "completion": self.completion,
            "embedding": lambda given: self._pool(self._embedding, given, PreparedEmbedding),
            "embed": lambda given: self._pool(self._embed, given, PreparedEmbed),
            "pooling": lambda given: self._pool(self._pooling, given, PreparedHidden),
            "classify": lambda given: self._pool(self._classify, given, PreparedClasses),
            "score": lambda given: self._pool(self._score, given, PreparedScore),
            "rerank": lambda given: self._pool(self._rerank, given, PreparedRerank),
            "response": self.response,
            "messages": self.messages,
            "count_tokens": self.count_tokens,
            "tokenize": self.tokenize,
            "detokenize": self.detokenize,
        }
        return steps[kind](data)

    def chat(self, data: Buffer) -> PreparedChat:
        """A body of /v1/chat/completions. Raises RequestError."""
        return self.prepare_chat(decode_body(self._chat, data))

    def prepare_chat(self, body: ChatRequest) -> PreparedChat:
        """The steps behind the decoding, for every API whose bodies become a chat request. Raises RequestError."""
        model = self.check_model(body.model)
        use = body.check(self.settings.max_logprobs, self.settings.limits)
        check_template(use, self.template, self.settings.format)
        plan = answer_plan(body, use, self._format, auto=self.settings.auto_tool_choice)
        params = self._params(body)
        text = self._render(body, use)
        tail = plain(text) if self.tokenizer.allows_control else own_tail(text)
        names = _form_names(body.form_field or ("tools" if use.restricts else body.reasoning_limit_name))
        with own_names(names):
            params = plan.held(params, tail)
        encoded = self.texts.rendered_prompt(text, bool(body.add_special_tokens), body.truncate_prompt_tokens)
        check_amount(self.settings, params, [len(encoded.ids)])
        first_turn = not has_answers(body.messages or [])
        body.messages = (body.messages or [])[-1:]
        body.documents = body.chat_template_kwargs = body.tools = body.tool_choice = None
        return PreparedChat(
            _lean(body),
            model,
            params,
            [Prompt(plain(text), encoded.ids, control_text=encoded.control_text)],
            tools=[tool.for_parsing() for tool in use.callable],
            format=plan.format,
            prompt_tail=plan.tail(tail)[-TAIL:],
            resumed=plan.resumed is not None,
            first_turn=first_turn,
            names=names,
            guided=bool(use.shown) and self.settings.format is not None and self.settings.format.guide is not None,
        )

    def completion(self, data: Buffer) -> PreparedCompletion:
        """A body of /v1/completions. Raises RequestError."""
        body = decode_body(self._completion, data)
        model = self.check_model(body.model)
        body.check(self.settings.limits)
        params = self._params(body)
        if body.echo and self.tokenizer.refusal:
            raise RequestError(self.tokenizer.refusal, param="echo")
        given = body.prompts()
        check_choices(self.settings, [*body.embedded, *given], body.n or 1)
        special, keep = body.add_special_tokens is not False, body.truncate_prompt_tokens
        prompts = embedded_prompts(body.embedded, self.settings)
        for item in given:
            if isinstance(item, str):
                prompts.append(Prompt(item, self.texts.prompt(item, special, keep)))
            else:
                prompts.append(Prompt(None, self.texts.fitting(item, keep)))
        check_amount(self.settings, params, [len(prompt.token_ids) for prompt in prompts])
        body.prompt = body.prompt_embeds = None
        return PreparedCompletion(_lean(body), model, params, prompts, _form_names(body.form_field))

    def _pool(self, decoder: msgspec.json.Decoder[Any], data: Buffer, kind: type[PreparedPooling]) -> PreparedPooling:
        """A body of texts to pool. Raises RequestError."""
        body: PoolingBody = decode_body(decoder, data)
        return self._pooled.prepare(body, self.check_model(body.model), kind)

    def response(self, data: Buffer) -> PreparedResponse:
        """A body of /v1/responses behind the items that are kept for it (see `kept_items`). Raises RequestError."""
        kept, data = unpacked(data)
        given: dict[str, msgspec.Raw] = decode_body(self._fields, data)
        body = decode_body(self._response, data)
        body.check(self.settings.limits)
        check_history(body, kept)
        items = given_items(body.input, kept.known)
        tools = chat_tools(body.tools, body.tool_choice)
        conversation = [*(kept.history or ()), *items]

        def prepare(some: list[Item]) -> PreparedChat:
            return self.prepare_chat(chat_request(body, some, tools))

        with own_names(RESPONSES_NAMES):
            chat = shortened(conversation, prepare) if body.truncation == "auto" else prepare(conversation)
        chat.names = combined(chat.names, RESPONSES_NAMES)
        shown_tools = bytes(given["tools"]) if body.tools else b""
        body.input = body.tools = None
        kept_items = complete(items) if body.stored else []
        return PreparedResponse(body, chat, kept_items, tools.table, unknown_fields(given), shown_tools)

    def messages(self, data: Buffer) -> PreparedMessages:
        """A body of /v1/messages. Raises RequestError."""
        given: dict[str, msgspec.Raw] = decode_body(self._fields, data)
        unknown = anthropic.check_fields(given)
        body = decode_body(self._messages, data)
        request = anthropic.chat_request(body, late_system=self._late_system)
        served = self.settings.format
        if served is not None and served.row.reasoning is not None:
            request.thinking_token_budget = anthropic.thinking_budget(body)
        with own_names(MESSAGES_NAMES):
            chat = self.prepare_chat(request)
        chat.names = combined(chat.names, MESSAGES_NAMES)
        room = self.settings.max_model_len - len(chat.prompts[0].token_ids)
        chat.params.max_tokens = min(body.max_tokens, room)
        return PreparedMessages(chat, body.max_tokens, anthropic.omits_thinking(body), unknown)

    def count_tokens(self, data: Buffer) -> CountedTokens:
        """A body of /v1/messages/count_tokens: rendered and tokenized as that of a request. Raises RequestError."""
        given: dict[str, msgspec.Raw] = decode_body(self._fields, data)
        unknown = anthropic.check_fields(given)
        body = anthropic.chat_request(decode_body(self._count_tokens, data), late_system=self._late_system)
        self.check_model(body.model)
        with own_names(MESSAGES_NAMES):
            use = body.check(self.settings.max_logprobs, self.settings.limits)
            check_template(use, self.template, self.settings.format)
            ids = self.texts.rendered(self._render(body, use), bool(body.add_special_tokens)).ids
        return CountedTokens(TokenCount(len(ids)), unknown)

    @functools.cached_property
    def _late_system(self) -> bool:
        """Whether the template shows system messages behind others; found once, when it is first asked for."""
        return anthropic.shows_late_system(self.template)

    def tokenize(self, data: Buffer) -> WrittenAnswer:
        """A body of /tokenize. Raises RequestError."""
        body = decode_body(self._tokenize, data)
        self.check_model(body.model)
        use = body.check(self.settings.limits)
        check_template(use, self.template, self.settings.format)
        if body.prompt is None:
            ids = self.texts.rendered(self._render(body, use), bool(body.add_special_tokens)).ids
        else:
            ids = self.texts.encode(body.prompt, body.add_special_tokens is not False)
        texts = [self.tokenizer.token_text(i) for i in ids] if body.return_token_strs else None
        return _written(TokenizeResponse(len(ids), self.settings.max_model_len, ids, texts))

    def detokenize(self, data: Buffer) -> WrittenAnswer:
        """A body of /detokenize. Raises RequestError."""
        body = decode_body(self._detokenize, data)
        self.check_model(body.model)
        if self.tokenizer.refusal:
            raise RequestError(self.tokenizer.refusal, param="tokens")
        size = self.settings.vocab_size
        if max(body.tokens, default=0) >= size:
            wrong = next(token for token in body.tokens if token >= size)
            raise RequestError(f"Token id {wrong} is outside the vocabulary; expected 0 to {size - 1}.", param="tokens")
        return _written(DetokenizeResponse(self.tokenizer.decode(body.tokens, skip_special_tokens=False)))

    def check_model(self, name: str | None) -> str:
        """The name to report for a request that asks for `name`; RequestError 404 when it is not served."""
        names = self.names.now()
        if name is None or name in names:
            return name or names[0]
        served = ", ".join(f"'{served}'" for served in names)
        raise RequestError(
            f"The model '{name}' does not exist; this server serves {served}.{nearest(name, names)}",
            param="model",
            status=404,
            code="model_not_found",
        )

    def _params(self, body: ChatRequest | CompletionRequest) -> SamplingParams:
        num_allowed, size = len(body.allowed_token_ids or ()), self.settings.vocab_size
        if num_allowed > size:
            raise RequestError(
                f"allowed_token_ids has {num_allowed} entries, more than there are tokens ({size}).",
                param="allowed_token_ids",
            )
        params = body.params(self.settings.defaults)
        if params.structured_outputs is not None:
            with own_names(_form_names(body.form_field)):
                params.structured_outputs = as_text(params.structured_outputs, self.settings.max_grammar_size)
        return params

    def _render(self, conversation: Conversation, use: ToolUse) -> WrittenText:
        if self.tokenizer.refusal:
            raise RequestError(self.tokenizer.refusal, param="messages")
        return self._prompts.render(
            conversation.messages or [],
            add_generation_prompt=conversation.opens_answer,
            continue_final_message=bool(conversation.continue_final_message),
            tools=use.shown,
            documents=conversation.documents,
            **conversation.template_variables(self.template.variables(with_tools=bool(use.shown))),
        )


def _written(answer: TokenizeResponse | DetokenizeResponse) -> WrittenAnswer:
    return WrittenAnswer(msgspec.json.encode(answer))


def _lean(body: Any) -> Any:
    """A body without the fields that are accepted and change nothing, which may hold anything."""
    for name in NEUTRAL:
        setattr(body, name, None)
    return body


def _form_names(field: str) -> dict[str, str]:
    """What errors about the answer's form name: the field that asks for it. field: empty when none does."""
    return {"structured_outputs": field} if field else {}
