"""Conversion of items of the Responses API into the messages of a conversation.

Owns: the meaning of each kind of item, and the refusal of kinds that no model here reads. Never does: know templates,
tools or the store. Called by: `core_apis.responses.translation`.

An answer's items (reasoning, a message, calls) become one message of the assistant, as chat templates expect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from core.api.errors import RequestError, nearest
from core_apis.responses.reasoning import unsealed
from core_apis.responses.tools import seen_name
from core_media.reading.parts import PlacedPart, placed_picture

Item = dict[str, Any]
Message = dict[str, Any]

PICTURE = "input_image"
SOUND = "input_audio"
INSTRUCTING = ("system", "developer")
OUTPUTS = ("function_call_output", "custom_tool_call_output")
"""Kinds of items that follow each other behind an answer; pictures of all of them come behind the last one."""
JOINT = "\n"
"""The separator between the parts of a text that has to be one."""

ROLES = ("user", "assistant", *INSTRUCTING)
TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "input_text": "text",
        "output_text": "text",
        "reasoning_text": "text",
        "refusal": "refusal",
        "summary_text": "text",
        "text": "text",
    }
)
"""Kinds of text parts, and the field that holds the text of each."""


def messages_of(instructions: str | None, items: Iterable[Item]) -> list[Message]:
    """Return the messages of a conversation. Raises RequestError, which names the item."""
    reader = _Reader()
    for index, item in enumerate(items):
        reader.read(item, f"input[{index}]")
    reader.show()
    return _with_one_beginning(instructions, reader.messages)


def item_kind(item: Item) -> object:
    """Return the type of an item; a message may leave it out."""
    kind = item.get("type")
    return "message" if kind is None and "role" in item else kind


def _with_one_beginning(instructions: str | None, messages: list[Message]) -> list[Message]:
    """Merge all instructions at the start of a conversation into one message: many templates allow only one, at the
    start.
    """
    texts = [instructions] if instructions else []
    role = INSTRUCTING[0]
    count = 0
    for message in messages:
        if message["role"] not in INSTRUCTING:
            break
        if not texts:
            role = message["role"]
        texts.append(message["content"])
        count += 1
    if not texts:
        return messages
    beginning = {"role": role, "content": "\n\n".join(texts)}
    return [beginning, *messages[count:]]


class _Reader:
    """The reader of items, with the messages so far. answer: the last message while items may still join it.

    _waiting: pictures of outputs, until another item follows. _shown: the turn with such pictures, while nothing follows it.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.answer: Message | None = None
        self._waiting: list[dict[str, Any]] = []
        self._shown: Message | None = None
        self._readers: dict[str, Callable[[Item, str], None]] = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._function_call,
            "custom_tool_call": self._custom_call,
            "function_call_output": self._output,
            "custom_tool_call_output": self._output,
            "mcp_call": self._mcp_call,
            "mcp_list_tools": self._mcp_list,
        }

    def read(self, item: Item, place: str) -> None:
        """Add an item."""
        kind = item_kind(item)
        read = self._readers.get(kind) if isinstance(kind, str) else None
        if read is None:
            known = ", ".join(f"'{name}'" for name in self._readers)
            hint = nearest(kind, self._readers) if isinstance(kind, str) else ""
            raise RequestError(
                f"{place} is of type {kind!r}; this server reads {known}.{hint} Leave the item out.", param="input"
            )
        if kind not in OUTPUTS:
            self.show()
        read(item, place)

    def show(self) -> None:
        """Add the pictures of calls' outputs as a message of the user, where templates expect pictures."""
        if self._waiting:
            self._add_user(self._waiting)
            self._shown = self.messages[-1]
            self._waiting = []

    def _message(self, item: Item, place: str) -> None:
        role = item.get("role")
        if role not in ROLES:
            raise RequestError(f"{place}.role is {role!r}; expected one of {', '.join(ROLES)}.", param="input")
        media = _with_media(item.get("content"), f"{place}.content") if role == "user" else None
        if media is not None:
            self._add_user(media)
            return
        texts = _texts(item.get("content"), f"{place}.content")
        text = JOINT.join(texts)
        if role == "user" and (len(texts) > 1 or self._shown is not None):
            self._add_user([{"type": "text", "text": each} for each in texts])
            return
        if role != "assistant":
            self._add({"role": role, "content": text})
            return
        answer = self._joinable("content", "tool_calls")
        answer["content"] = text

    def _reasoning(self, item: Item, place: str) -> None:
        text = _reasoning_text(item, place)
        answer = self._joinable("reasoning", "content", "tool_calls")
        answer["reasoning"] = text

    def _function_call(self, item: Item, place: str) -> None:
        arguments = _required(item, "arguments", place)
        call_id = _required(item, "call_id", place)
        function = {"name": self._tool_name(item, place), "arguments": arguments}
        self._add_call({"id": call_id, "type": "function", "function": function})

    def _custom_call(self, item: Item, place: str) -> None:
        given = _required(item, "input", place)
        call_id = _required(item, "call_id", place)
        custom = {"name": self._tool_name(item, place), "input": given}
        self._add_call({"id": call_id, "type": "custom", "custom": custom})

    def _output(self, item: Item, place: str) -> None:
        call_id = _required(item, "call_id", place)
        output, where = item.get("output"), f"{place}.output"
        parts = _with_media(output, where)
        if parts is None:
            text = _text(output, where)
        else:
            text = JOINT.join(part["text"] for part in parts if part["type"] == "text")
            self._waiting += [part for part in parts if part["type"] != "text"]
        self._add({"role": "tool", "tool_call_id": call_id, "content": text})

    def _mcp_call(self, item: Item, place: str) -> None:
        """Read a call that a server ran, with its result: what the model wrote, and what it was told."""
        name = seen_name(_required(item, "name", place), _required(item, "server_label", place))
        call_id = _required(item, "id", place)
        function = {"name": name, "arguments": _required(item, "arguments", place)}
        self._add_call({"id": call_id, "type": "function", "function": function})
        output = item.get("output")
        text = _error_text(item.get("error"), place) if output is None else _text(output, f"{place}.output")
        self._add({"role": "tool", "tool_call_id": call_id, "content": text})

    def _mcp_list(self, item: Item, place: str) -> None:
        """Read over a list of tools: the model is shown the tools of the request that it answers."""

    def _add_user(self, parts: list[dict[str, Any]]) -> None:
        """Add a turn of the user; one behind pictures of outputs joins theirs, as many templates have turns alternate."""
        if self._shown is not None:
            self._shown["content"] += parts
            return
        self._add({"role": "user", "content": parts})

    def _add(self, message: Message) -> None:
        self.messages.append(message)
        self.answer = None
        self._shown = None

    def _add_call(self, call: dict[str, Any]) -> None:
        answer = self._joinable()
        answer.setdefault("tool_calls", []).append(call)

    def _joinable(self, *closed_by: str) -> Message:
        """Return the answer that an item joins: a new one if the last one already has one of the parts `closed_by`."""
        answer = self.answer
        if answer is None or any(part in answer for part in closed_by):
            answer = {"role": "assistant"}
            self._add(answer)
            self.answer = answer
        return answer

    def _tool_name(self, item: Item, place: str) -> str:
        name = _required(item, "name", place)
        namespace = item.get("namespace")
        return seen_name(name, namespace if isinstance(namespace, str) else None)


def _required(item: Item, name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{place}.{name} is {type(value).__name__}; expected a text.", param="input")
    return value


def _error_text(error: object, place: str) -> str:
    """Return what the model is told of a call without an output."""
    if error is None:
        return "Error: the call was not run."
    if isinstance(error, str):
        return f"Error: {error}"
    if not isinstance(error, dict):
        raise RequestError(f"{place}.error is {type(error).__name__}; expected an object or null.", param="input")
    content = error.get("content")
    text = error.get("message") if content is None else _text(content, f"{place}.error.content")
    return f"Error: {text}"


def _reasoning_text(item: Item, place: str) -> str:
    """Return the reasoning text from the best source of the item: the text itself, the sealed text, or a summary."""
    text = _text(item.get("content") or "", f"{place}.content")
    summary = _text(item.get("summary") or "", f"{place}.summary")
    hidden = item.get("encrypted_content")
    if text or not isinstance(hidden, str) or not hidden:
        return text or summary
    try:
        return unsealed(hidden, place)
    except RequestError:
        if summary:
            return summary
        raise


def _text(content: object, place: str) -> str:
    """Return the text of a content."""
    return JOINT.join(_texts(content, place))


def _texts(content: object, place: str) -> list[str]:
    """Return the texts of a content, which is a text or a list of parts."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise RequestError(f"{place} is no text and no list of parts.", param="input")
    texts: list[str] = []
    for index, part in enumerate(content):
        texts.append(_part_text(part, f"{place}[{index}]"))
    return texts


def _with_media(content: object, place: str) -> list[dict[str, Any]] | None:
    """Return the parts of a content with pictures or sounds; None: it has none. Raises RequestError."""
    if not isinstance(content, list) or not any(
        isinstance(part, dict) and part.get("type") in (PICTURE, SOUND) for part in content
    ):
        return None
    parts: list[dict[str, Any]] = []
    for index, part in enumerate(content):
        where = f"{place}[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == SOUND:
            parts.append(PlacedPart(part, where, SOUND))
        elif kind != PICTURE:
            parts.append({"type": "text", "text": _part_text(part, where)})
        elif part.get("file_id") is not None:
            raise RequestError(
                f"{where}.file_id: files are not kept here; send the picture as a data URL.", param="input"
            )
        else:
            parts.append(placed_picture(part.get("image_url"), where, PICTURE))
    return parts


def _part_text(part: object, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    where = TEXTS.get(kind) if isinstance(kind, str) else None
    if where is None or not isinstance(part, dict):
        raise RequestError(f"{place} is of type {kind!r}; this model reads parts of text only.", param="input")
    text = part.get(where)
    if not isinstance(text, str):
        raise RequestError(f"{place}.{where} is {type(text).__name__}; expected a text.", param="input")
    return text
