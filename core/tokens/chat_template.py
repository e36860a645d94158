"""Chat templates: messages to the prompt's text, with the checkpoint's Jinja source in a sandbox.

Owns: rendering, its limits, and the form in which messages reach a template. Never does: tokenize, know a model.
Called by: `LLM.chat`, the server's chat and tokenize routes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes

from core.api.errors import RequestError
from core.tokens.template_sandbox import TemplateSandbox

MAX_CHARACTERS = 16_000_000
MAX_SECONDS = 10.0
CONTINUE_MARK = "\ue000continue\ue000"
NO_TEMPLATE = (
    "The model has no chat template. Give one with --chat-template, or send a plain prompt instead of messages."
)


def has_answers(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a conversation holds earlier answers of the model."""
    return any(message.get("role") == "assistant" for message in messages)


class ChatTemplate:
    """One compiled template, or one for conversations with tools and one for all others.

    source: Jinja source. None is allowed; rendering then says what to do.
    for_tools: Jinja source of another template, which renders conversations with tools; None: the same.
    special_tokens: `bos_token`, `eos_token`, ... as the template sees them.
    wants_parts: whether it takes a message's content as a list of parts; known after the first rendering.
    """

    def __init__(
        self, source: str | None, special_tokens: Mapping[str, str] | None = None, for_tools: str | None = None
    ) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        self._with_tools = None if for_tools is None else ChatTemplate(for_tools, special_tokens)
        self._template: jinja2.Template | None = None
        self.wants_parts = False

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt. Content given as a list of text parts is joined for templates that expect strings.

        continue_final_message: the prompt ends inside the last message, for the model to go on with it.
        Raises RequestError when there is no template, when the template refuses, fails or runs too long.
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
        template = self._compiled()
        try:
            prepared = [self._prepared(message) for message in messages]
            values = {
                **self.special_tokens,
                **kwargs,
                "messages": prepared,
                "tools": [_plain(tool) for tool in tools] if tools else None,
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

    def _compiled(self) -> jinja2.Template:
        if self.source is None:
            raise RequestError(NO_TEMPLATE, param="messages")
        if self._template is None:
            sandbox = TemplateSandbox()
            try:
                self.wants_parts = _iterates_content(sandbox.parse(self.source))
                self._template = sandbox.from_string(self.source)
            except (jinja2.TemplateError, RecursionError) as error:
                raise RequestError(
                    f"The chat template is not valid ({error}). Give another one with --chat-template."
                ) from error
        return self._template

    def _prepared(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A copy, so that the template cannot change the caller's message."""
        copy: dict[str, Any] = _plain(message)
        content = copy.get("content")
        if isinstance(content, list) and not self.wants_parts:
            copy["content"] = "\n".join(_part_text(part) for part in content)
        return copy


def _plain(value: Any) -> Any:
    """A deep copy made of plain values only."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise RequestError(
        f"A message holds a value of type {type(value).__name__}; expected plain JSON values.", param="messages"
    )


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if _has_text(part):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise RequestError(f"Content part of type {kind!r} is not supported; expected 'text'.", param="messages")


def _mark_end(messages: list[dict[str, Any]]) -> None:
    """Put the mark behind the last message's text. Raises RequestError when there is none."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        messages[-1]["content"] = content + CONTINUE_MARK
        return
    parts = [part for part in content or [] if _has_text(part)]
    if not parts:
        raise RequestError("continue_final_message needs a last message with text.", param="messages")
    parts[-1]["text"] += CONTINUE_MARK


def _has_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _cut_at_mark(text: str) -> str:
    end = text.rfind(CONTINUE_MARK)
    if end < 0:
        raise RequestError(
            "The chat template leaves out the end of the last message, so it cannot be continued.",
            param="continue_final_message",
        )
    return text[:end]


def _run(template: jinja2.Template, values: dict[str, Any]) -> str:
    """Render piece by piece, within the limits of size and time."""
    pieces: list[str] = []
    size = 0
    deadline = time.monotonic() + MAX_SECONDS
    try:
        for piece in template.generate(TemplateSandbox.limited(values)):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_CHARACTERS or time.monotonic() > deadline:
                raise RequestError(
                    f"The chat template wrote {size} characters and was stopped; the limits are {MAX_CHARACTERS} characters "
                    f"and {MAX_SECONDS:g} seconds.",
                    param="messages",
                )
    except RequestError:
        raise
    except Exception as error:  # a template may raise anything
        reason = str(error) or type(error).__name__
        raise RequestError(f"The chat template refused the messages: {reason}", param="messages") from error
    return "".join(pieces)


def _iterates_content(tree: nodes.Template) -> bool:
    """Whether the template loops over a message's content, so that it takes a list of parts."""
    aliases: set[str] = set()
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _mentions_content(assignment.node, set()):
            aliases.add(assignment.target.name)
    return any(_mentions_content(loop.iter, aliases) for loop in tree.find_all(nodes.For))


def _mentions_content(node: nodes.Node, aliases: set[str]) -> bool:
    """Whether an expression is `x.content`, `x['content']` or a name assigned from one, maybe filtered."""
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in aliases
