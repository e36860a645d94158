"""Preparation of request bodies for the engine: decoding, checks, templates, tokens.

Owns: the steps that bodies have in common, and running those of one kind. Never does: know the kinds (rows of
`BodyKind`, which APIs bring), read the network, know an engine, or wait: it is plain computation, which runs in the
server's process or in a helper process. Called by: `core_apis.prepare.preparer` (which decides where) and the helper process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from core.api.errors import RequestError, nearest
from core.api.sampling_params import SamplingParams
from core_apis.answers.plan import answer_plan
from core_apis.apis import body_kinds
from core_apis.body_kinds import Buffer
from core_apis.field_names import own_names
from core_apis.histories.trace import History, history_of
from core_apis.prepare.amounts import check_amount
from core_apis.prepare.prepared import PreparationSettings, PreparedChat, Prompt
from core_apis.prepare.text_tokens import TextTokens
from core_apis.protocol.chat import ChatRequest
from core_apis.protocol.completions import CompletionRequest
from core_apis.protocol.messages import Conversation
from core_apis.protocol.sampling import NEUTRAL
from core_apis.served_names import ServedNames
from core_formats.answers.plan import check_template
from core_formats.conversation_prompts import ConversationPrompts
from core_formats.markers import markers_of
from core_formats.tool_use import ToolUse
from core_frontend.prompts.bad_words import bad_word_tokens
from core_grammars.spec import as_text
from core_media.reading.given import set_options
from core_media.reading.parts import take_media
from core_tokens.chat.chat_template import ChatTemplate, has_answers
from core_tokens.chat.question_edge import question_edges
from core_tokens.chat.template_limits import Limits
from core_tokens.chat.written_text import WrittenText, own_tail, plain, spans_of
from core_tokens.content_encoding import ContentEncoder
from core_tokens.tokenizer import Tokenizer

T = TypeVar("T")
TAIL = 256
"""Number of characters at the end of a prompt that is more than a template writes after the last message."""


class Preparation:
    """The preparation steps of one server.

    tokenizer: of the served model. limits: of rendering templates, if rendering has its own. bodies: the kinds by name.
    """

    def __init__(self, settings: PreparationSettings, tokenizer: Tokenizer, limits: Limits | None = None) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.limits = limits
        self.bodies = body_kinds(settings.apis)
        self.names = ServedNames(settings.served_names, settings.served_names_file)
        self.template = ChatTemplate(
            settings.chat_template,
            tokenizer.special_tokens,
            settings.tool_template,
            limits,
            {} if settings.media is None else settings.media.shown,
            settings.template.content_format,
        )
        self._prompts = ConversationPrompts(self.template, settings.format)
        self._format = settings.format
        # The format without the guide: answers need only this part, and it is sent with each of them.
        if settings.format is not None:
            self._format = msgspec.structs.replace(settings.format, guide=None)
        num_for_output = 1 if settings.pooling is None else 0
        markers = () if settings.format is None else markers_of(settings.format.row)
        contents = ContentEncoder.of(tokenizer, (*self.template.sources, *markers))
        longest = max(settings.max_model_len, 0 if settings.pooling is None else settings.pooling.max_embed_len)
        self.texts = TextTokens(tokenizer, contents, longest, longest - num_for_output)
        self._made: dict[Callable[[Preparation], Any], Any] = {}

    def run(self, kind: str, data: Buffer) -> Any:
        """Prepare a body of `kind`. Raises RequestError."""
        body = self.bodies[kind]
        return body.prepare(self, body.decode(data))

    def once(self, make: Callable[[Preparation], T]) -> T:
        """Return what `make` makes of this preparation, made at the first call and shared between rows."""
        if make not in self._made:
            self._made[make] = make(self)
        return cast(T, self._made[make])

    def prepare_chat(self, body: ChatRequest) -> PreparedChat:
        """Run the steps after decoding, for every API whose bodies become a chat request. Raises RequestError."""
        model = self.check_model(body.model)
        pictures = take_media(body.messages or [], self.settings.media, self.settings.media_refusal)
        set_options(pictures, body.mm_processor_kwargs)
        use = self.checked(body)
        check_template(use, self.template, self.settings.format)
        plan = answer_plan(body, use, self._format, auto=self.settings.auto_tool_choice)
        params = self.params(body)
        text = self.render(body, use)
        tail = plain(text) if self.tokenizer.allows_control else own_tail(text)
        names = form_names(body.form_field or ("tools" if use.restricts else body.reasoning_limit_name))
        with own_names(names):
            params = plan.held(params, tail)
        encoded = self.texts.rendered_prompt(text, bool(body.add_special_tokens), body.truncate_prompt_tokens)
        check_amount(self.settings, params, [len(encoded.ids)])
        first_turn = not has_answers(body.messages or [])
        history = None if pictures else self._history(text, body, use)
        edges = [] if pictures else self._edges(plain(text), encoded.ids, body)
        prompt = Prompt(plain(text), encoded.ids, control_text=encoded.control_text, edges=edges, pictures=pictures)
        if pictures:
            prompt.written = spans_of(text)
        body.messages = (body.messages or [])[-1:]
        body.documents = body.chat_template_kwargs = body.tools = body.tool_choice = None
        return PreparedChat(
            lean(body),
            model,
            params,
            [prompt],
            tools=[tool.for_parsing() for tool in use.callable],
            format=plan.format,
            prompt_tail=plan.tail(tail)[-TAIL:],
            resumed=plan.resumed is not None,
            first_turn=first_turn,
            names=names,
            guided=bool(use.shown) and self.settings.format is not None and self.settings.format.guide is not None,
            history=history,
        )

    def checked(self, body: ChatRequest) -> ToolUse:
        """Refuse a body that cannot be served. Return the tools that it offers. Raises RequestError."""
        settings = self.settings
        shows_uncallable = settings.template.shows_uncallable
        return body.check(settings.max_logprobs, settings.limits, shows_uncallable=shows_uncallable)

    def _history(self, text: WrittenText, body: ChatRequest, use: ToolUse) -> History | None:
        """Return the history of a prompt; None where none is remembered, or only the prompt's end is used."""
        if not self.settings.remembers or body.truncate_prompt_tokens is not None:
            return None
        given = [body.chat_template_kwargs, body.documents, body.reasoning_effort]
        return history_of(text, body.messages or [], use.shown or (), given)

    def _edges(self, text: str, ids: list[int], body: ChatRequest) -> list[int]:
        """Return the edges of a prompt; none where only its end is used."""
        if not self.settings.keeps_edges or body.truncate_prompt_tokens is not None:
            return []
        return question_edges(text, ids, body.messages or [], self.tokenizer)

    def check_model(self, name: str | None) -> str:
        """Return the model name to report for a request that names `name`; RequestError 404 if it is not served."""
        names = self.names.now()
        if name is None or name in names or self.settings.adapters:
            return name or names[0]
        served = ", ".join(f"'{served}'" for served in names)
        raise RequestError(
            f"The model '{name}' does not exist; this server serves {served}.{nearest(name, names)}",
            param="model",
            status=404,
            code="model_not_found",
        )

    def params(self, body: ChatRequest | CompletionRequest) -> SamplingParams:
        """Return the sampling parameters of a body over the checkpoint's own. Raises RequestError."""
        num_allowed, size = len(body.allowed_token_ids or ()), self.settings.vocab_size
        if num_allowed > size:
            raise RequestError(
                f"allowed_token_ids has {num_allowed} entries, more than there are tokens ({size}).",
                param="allowed_token_ids",
            )
        params = body.params(self.settings.defaults)
        if params.structured_outputs is not None:
            with own_names(form_names(body.form_field)):
                params.structured_outputs = as_text(params.structured_outputs, self.settings.max_grammar_size)
        if params.bad_words and self.tokenizer.plug is not None:
            # The server tokenizes them again where nothing could end a plugin that hangs; this process can be ended.
            bad_word_tokens(self.tokenizer, params.bad_words)
        return params

    def render(self, conversation: Conversation, use: ToolUse) -> WrittenText:
        """Return the prompt of a conversation. Raises RequestError."""
        if self.tokenizer.refusal:
            raise RequestError(self.tokenizer.refusal, param="messages")
        return self._prompts.render(
            conversation.messages or [],
            add_generation_prompt=conversation.opens_answer,
            continue_final_message=bool(conversation.continue_final_message),
            tools=use.shown,
            documents=conversation.documents,
            **conversation.template_variables(
                self.template.variables(with_tools=bool(use.shown)), self.settings.template
            ),
        )


def lean(body: Any) -> Any:
    """Return a body without the fields that are accepted but change nothing, whose values may be of any size."""
    for name in NEUTRAL:
        setattr(body, name, None)
    return body


def form_names(field: str) -> dict[str, str]:
    """Map the field names in errors about the answer's format to the field that requests it.

    field: empty if none does.
    """
    return {"structured_outputs": field} if field else {}
