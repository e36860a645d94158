"""Slash commands of a chat.

Owns: the table of commands. Never does: call the model. Called by: chat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core.api.errors import UserError, nearest
from core_commands.terminal.conversation import Conversation
from core_commands.terminal.screen import Screen


class Leave(Exception):
    """Raised to end the chat."""


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A slash command. argument: description of its argument; empty: it has none.

    run: takes the argument, and returns a question to send immediately, or None.
    """

    argument: str
    help: str
    run: Callable[[Conversation, Screen, str], str | None]


def run_slash(line: str, conversation: Conversation, screen: Screen) -> str | None:
    """Run the command in `line`; returns a question to send immediately, or None. Raises UserError, Leave."""
    name, _, argument = line[1:].partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise UserError(
            f"/{name}: unknown; /help lists what there is.{nearest('/' + name, ['/' + n for n in COMMANDS])}"
        )
    argument = argument.strip()
    if argument and not command.argument:
        raise UserError(f"/{name} takes nothing; a message that begins with a slash is written with a space before it.")
    if not argument and command.argument.isupper():
        raise UserError(f"/{name}: {command.argument} is missing.")
    return command.run(conversation, screen, argument)


def _help(conversation: Conversation, screen: Screen, argument: str) -> None:
    for name, command in COMMANDS.items():
        usage = f"/{name} {command.argument}".ljust(16)
        print(f"{usage} {command.help}")
    print('A line that ends with \\ goes on; """ begins and ends a message of several lines.')
    print("A text that is pasted is one message. Ctrl-C stops an answer.")


def _leave(conversation: Conversation, screen: Screen, argument: str) -> None:
    raise Leave


def _new(conversation: Conversation, screen: Screen, argument: str) -> None:
    conversation.clear()
    screen.note("A new conversation.")


def _system(conversation: Conversation, screen: Screen, argument: str) -> None:
    if not argument:
        screen.note(conversation.system or "There is no system prompt.")
        return
    conversation.system = argument


def _file(conversation: Conversation, screen: Screen, argument: str) -> None:
    conversation.attach(argument)
    _, text = conversation.files[-1]
    screen.note(f"{argument} goes with the next message: {len(text)} characters.")


def _undo(conversation: Conversation, screen: Screen, argument: str) -> None:
    question = conversation.take_back()
    screen.note("Nothing to take back." if question is None else f"Taken back: {question.content[:60]}")


def _retry(conversation: Conversation, screen: Screen, argument: str) -> str:
    question = conversation.take_back()
    if question is None:
        raise UserError("/retry: there is no question yet.")
    return question.content


def _save(conversation: Conversation, screen: Screen, argument: str) -> None:
    conversation.save(argument)
    screen.note(f"{argument}: {len(conversation.messages)} messages.")


def _load(conversation: Conversation, screen: Screen, argument: str) -> None:
    conversation.load(argument)
    screen.note(f"{argument}: {len(conversation.messages)} messages.")


COMMANDS = {
    "help": SlashCommand("", "This list.", _help),
    "exit": SlashCommand("", "Leave; so does Ctrl-D.", _leave),
    "new": SlashCommand("", "Begin a new conversation.", _new),
    "system": SlashCommand("[text]", "Set the system prompt, or show it.", _system),
    "file": SlashCommand("PATH", "Give a text file with the next message.", _file),
    "retry": SlashCommand("", "Answer the last question again.", _retry),
    "undo": SlashCommand("", "Take the last question and its answer back.", _undo),
    "save": SlashCommand("PATH", "Write the conversation as a request's messages.", _save),
    "load": SlashCommand("PATH", "Go on with such a conversation.", _load),
}
