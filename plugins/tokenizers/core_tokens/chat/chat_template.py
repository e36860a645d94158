"""Chat templates: rendering of messages to a prompt, with the checkpoint's Jinja source in a sandbox.

Owns: rendering and its limits. Never does: tokenize, know a model, or the forms of messages
(`core_tokens.chat.message_forms`).
Called by: `LLM.chat`, the server's chat and tokenize routes.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jinja2

from core.api.errors import RequestError
from core_tokens.chat.message_forms import (
    PROBE_ARGUMENTS,
    PROBE_TOOL,
    REASONING_NAMES,
    ContentFormat,
    MessageForms,
    TemplateForms,
    forms_of,
    functions_of,
    has_text,
    probe_conversation,
    shows_as_one,
)
from core_tokens.chat.template_limits import Limits, ThreadLimits, limited
from core_tokens.chat.template_sandbox import TemplateSandbox
from core_tokens.chat.written_text import WrittenText, joined, plain, spans_of, written

MAX_CHARACTERS = 16_000_000
CONTINUE_MARK = f"\ue000continue-{secrets.token_hex(16)}\ue000"
"""Marks the place where the last message is to be continued. It is random, so no client can forge it."""
ROLES: Mapping[str, str] = MappingProxyType(
    {
        name: written(name)
        for name in (
            *("system", "developer", "user", "assistant", "tool", "function", "ipython", "model", "observation"),
            *("query", "document"),
        )
    }
)
"""Roles that count as the template's own words: some templates put them into markers, as in `'<|' + message.role +
'|>'`.
"""
NO_TEMPLATE = (
    "The model has no chat template. Give one with --chat-template (a file, or chatml, llama2, llama3, mistral, gemma, vicuna, "
    "alpaca, zephyr or phi3), or send a plain prompt instead of messages."
)


def has_answers(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a conversation contains earlier answers of the model."""
    return any(message.get("role") == "assistant" for message in messages)


class ChatTemplate:
    """A compiled template, or one for conversations with tools and one for all others.

    source: Jinja source. None is allowed; rendering then raises an error that says what to do.
    for_tools: Jinja source for conversations with tools; None: the same.
    special_tokens: `bos_token`, `eos_token`, ... as the template sees them.
    limits: of work and memory, for compiling and each rendering.
    media: by type of part, what stands for an item where the template takes no parts; empty: messages have none.
    content_format: form of contents: `string`, `openai` (a list of parts), or `auto`, which is what the template reads.
    """

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str] | None = None,
        for_tools: str | None = None,
        limits: Limits | None = None,
        media: Mapping[str, str] | None = None,
        content_format: ContentFormat = "auto",
    ) -> None:
        self.limits: Limits = ThreadLimits() if limits is None else limits
        self.source = source
        self._media = dict(media or {})
        self._content_format = content_format
        self.special_tokens = dict(special_tokens or {})
        self._own_words = {name: written(text) for name, text in self.special_tokens.items()}
        self._with_tools: ChatTemplate | None = None
        if for_tools is not None:
            self._with_tools = ChatTemplate(
                for_tools, special_tokens, limits=limits, media=media, content_format=content_format
            )
        self._template: tuple[jinja2.Template, TemplateForms] | None = None
        self._wants_objects: bool | None = None

    @limited
    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> WrittenText:
        """Return the prompt, in which the template's own characters are marked (`core_tokens.chat.written_text`).

        Contents, calls and reasoning are passed in the form that the template accepts.
        continue_final_message: the prompt ends inside the last message, for the model to go on with it. Raises
            RequestError when there is no template, when the template refuses, fails or runs too long.
        """
        if tools and self._with_tools is not None:
            return self._with_tools.render(
                messages, add_generation_prompt, continue_final_message, tools, documents, **kwargs
            )
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other; set add_generation_prompt to false.",
                param="continue_final_message",
            )
        template, forms = self._compiled()
        adapting = MessageForms(forms, self._takes_objects, self._media)
        try:
            # Copies, so that the template cannot change the caller's messages.
            prepared = [_with_role(adapting.adapt(_plain(message))) for message in messages]
            values = {
                **self._own_words,
                **kwargs,
                "messages": prepared,
                "tools": [_plain(tool) for tool in functions_of(tools)] if tools else None,
                "documents": [_plain(document) for document in documents] if documents else None,
                "add_generation_prompt": add_generation_prompt,
            }
        except RecursionError:
            raise RequestError(
                "The conversation holds values that are nested too deeply; send flatter ones.", param="messages"
            ) from None
        if continue_final_message:
            _mark_end(prepared)
        text = _run(template, values)
        return _cut_at_mark(text) if continue_final_message else text

    def variables(self, *, with_tools: bool = False) -> frozenset[str]:
        """Return the variable names that it reads, for a conversation with tools or without. Raises RequestError for an
        invalid template.
        """
        if with_tools and self._with_tools is not None:
            return self._with_tools.variables()
        return self._compiled()[1].variables

    def _compiled(self) -> tuple[jinja2.Template, TemplateForms]:
        if self.source is None:
            raise RequestError(NO_TEMPLATE, param="messages")
        if self._template is None:
            self._template = self._compile(self.source)
        return self._template

    @limited
    def _compile(self, source: str) -> tuple[jinja2.Template, TemplateForms]:
        sandbox = TemplateSandbox()
        try:
            forms = forms_of(source, sandbox.parse(source), self._content_format)
            return sandbox.from_string(source), forms
        except (jinja2.TemplateError, RecursionError) as error:
            raise RequestError(
                f"The chat template is not valid ({error}). Give another one with --chat-template."
            ) from error

    def _takes_objects(self) -> bool:
        """Whether the template expects a call's arguments as objects. Text is preferred if the template shows it
        unchanged and has no form of its own for objects: the next prompt then begins with exactly what the model wrote.
        Determined once, by rendering a conversation both ways.
        """
        if self._wants_objects is None:
            as_text = self._probed(objects=False)
            if as_text is None or PROBE_ARGUMENTS not in as_text:
                self._wants_objects = True  # most templates that reject text take it apart
            else:
                as_objects = self._probed(objects=True)
                self._wants_objects = as_objects is not None and not shows_as_one(as_objects)
        return self._wants_objects

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the one or two Jinja sources, and what stands for media, if anything does."""
        others = () if self._with_tools is None else self._with_tools.sources
        own = (self.source,) if self.source is not None else ()
        return (*own, *others, *self._media.values())

    def _probed(self, *, objects: bool) -> str | None:
        """Render a conversation with a call; None where the template rejects it. objects: form of the arguments."""
        template, forms = self._compiled()
        adapting = MessageForms(forms, lambda: objects, self._media)
        values = {
            **self._own_words,
            "messages": [adapting.adapt(message) for message in probe_conversation()],
            "tools": [_plain(PROBE_TOOL)],
            "documents": None,
            "add_generation_prompt": False,
        }
        try:
            return _run(template, values)
        except RequestError:
            return None


def _plain(value: Any) -> Any:
    """Return a deep copy of plain values only."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return plain(value)
    if value is None or isinstance(value, int | float | bool):
        return value
    raise RequestError(
        f"A message holds a value of type {type(value).__name__}; expected plain JSON values.", param="messages"
    )


def _with_role(message: dict[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if isinstance(role, str) and role in ROLES:
        message["role"] = ROLES[role]
    return message


def _mark_end(messages: list[dict[str, Any]]) -> None:
    """Put the mark after the last message's text, or its reasoning if it has no text. Raises RequestError when it has
    neither.
    """
    content = messages[-1].get("content") if messages else None
    thoughts = [name for name in REASONING_NAMES if messages and isinstance(messages[-1].get(name), str)]
    if thoughts and not content:
        for name in thoughts:
            messages[-1][name] += CONTINUE_MARK
        return
    if isinstance(content, str):
        messages[-1]["content"] = content + CONTINUE_MARK
        return
    parts = [part for part in content or [] if has_text(part)]
    if not parts:
        raise RequestError("continue_final_message needs a last message with text.", param="messages")
    parts[-1]["text"] += CONTINUE_MARK


def _cut_at_mark(text: WrittenText) -> WrittenText:
    end = text.rfind(CONTINUE_MARK)
    if end < 0:
        raise RequestError(
            "The chat template leaves out the end of the last message, so it cannot be continued.",
            param="continue_final_message",
        )
    kept = text[:end]
    return WrittenText(kept, spans_of(kept))


def _run(template: jinja2.Template, values: dict[str, Any]) -> WrittenText:
    """Render piece by piece, within the limit of size."""
    pieces: list[str] = []
    size = 0
    try:
        for piece in template.generate(TemplateSandbox.limited(values)):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_CHARACTERS:
                raise RequestError(
                    f"The chat template wrote {size} characters and was stopped; the limit is {MAX_CHARACTERS} characters.",
                    param="messages",
                )
    except (RequestError, MemoryError):
        raise
    except Exception as error:  # a template may raise anything
        reason = str(error) or type(error).__name__
        raise RequestError(f"The chat template refused the messages: {reason}", param="messages") from error
    text = joined(pieces)
    return text if isinstance(text, WrittenText) else WrittenText(text)
