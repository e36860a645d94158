"""A conversation: its messages, attached files, and its file format.

Owns: these. Never does: call a model. Called by: chat.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from core.api.errors import UserError
from core_commands.cli.own_files import own_path, write_whole

LARGEST_FILE = 4 * 1024 * 1024
LARGEST_HISTORY = 256 * 1024 * 1024
"""Limit on a history file in bytes."""
SHORTEST_FENCE = 3


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A message with a text."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a conversation at one moment."""

    system: str
    messages: tuple[Message, ...]
    files: tuple[tuple[str, str], ...]


class Conversation:
    """Messages in order. system: the system prompt; empty: none. files: sent with the next message, as (name, text)."""

    def __init__(self, system: str = "") -> None:
        self.system = system
        self.messages: list[Message] = []
        self.files: list[tuple[str, str]] = []

    def snapshot(self) -> Snapshot:
        """Return the state for `restore`."""
        return Snapshot(self.system, tuple(self.messages), tuple(self.files))

    def restore(self, earlier: Snapshot) -> None:
        """Return to an earlier state."""
        self.system = earlier.system
        self.messages = list(earlier.messages)
        self.files = list(earlier.files)

    def ask(self, text: str) -> None:
        """Add a user message, with the pending files."""
        parts = [_fenced(name, content) for name, content in self.files]
        self.files.clear()
        self.messages.append(Message("user", "\n".join([*parts, text])))

    def answer(self, text: str) -> None:
        """Add the model's message."""
        self.messages.append(Message("assistant", text))

    def take_back(self) -> Message | None:
        """Remove the last question and its answer; returns the question, or None when there is none."""
        while self.messages:
            last = self.messages.pop()
            if last.role == "user":
                return last
        return None

    def clear(self) -> None:
        """Drop all messages; the system prompt is kept."""
        self.messages.clear()
        self.files.clear()

    def attach(self, path: str) -> None:
        """Attach a text file to the next message. Raises UserError."""
        self.files.append((path, read_text(path, LARGEST_FILE)))

    def request(self) -> list[Message]:
        """Return all messages, the system's first."""
        return [Message("system", self.system), *self.messages] if self.system else self.messages

    def save(self, path: str) -> None:
        """Write the conversation in the form of a request's `messages`. Raises UserError."""
        text = msgspec.json.format(msgspec.json.encode(self.request()), indent=2)
        write_whole(own_path(path), text + b"\n")

    def load(self, path: str) -> None:
        """Load a file written by `save`, replacing everything. Raises UserError."""
        text = read_text(path, LARGEST_HISTORY)
        try:
            messages = msgspec.json.decode(text, type=list[Message])
        except msgspec.DecodeError as error:
            raise UserError(f"{path}: no list of messages with role and content: {error}.") from None
        self.system = ""
        if messages and messages[0].role == "system":
            self.system = messages.pop(0).content
        self.messages = messages


def _fenced(name: str, content: str) -> str:
    """Quote a file in a message, with a fence longer than any in the file, so that its end is recognizable."""
    longest = max(map(len, re.findall("`+", content)), default=0)
    fence = "`" * max(SHORTEST_FENCE, longest + 1)
    return f"{name}:\n{fence}\n{content}\n{fence}\n"


def read_text(path: str, most: int) -> str:
    """Read a text file. Raises UserError for one that is missing, too large or not UTF-8."""
    try:
        with own_path(path).open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
    if len(data) > most:
        raise UserError(f"{path}: larger than {most >> 20} MiB; give a part of it.")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UserError(f"{path}: no text in UTF-8, and only texts can be given to the model.") from None


def attach_all(conversation: Conversation, paths: Sequence[str]) -> None:
    """Attach several files. Raises UserError."""
    for path in paths:
        conversation.attach(path)
