"""`core chat [MODEL]` and `core complete [MODEL]`: a model in a terminal.

Owns: the arguments of both. Never does: talk itself. Called by: the frame.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from core.api.errors import UserError
from core.args.arg import Arg
from core.commands.words import take_help
from core_commands.cli.options import parse_engine_arguments
from core_commands.cli.own_files import own_path
from core_commands.cli.own_options import option_section, own_flags, take_options

if TYPE_CHECKING:
    from core_commands.terminal.answers import Teller
    from core_commands.terminal.chat import Chat
    from core_commands.terminal.complete import Completion
    from core_commands.terminal.conversation import Conversation

CHAT_USAGE = "core chat [MODEL] [ARGUMENTS]"
CHAT_SUMMARY = (
    "Talk to a model. With --url to a running server; with MODEL to an engine of its own; with neither to the server on port "
    "8000 of this machine, if one runs there, else to the embedded model. A pipe into it is one message."
)
COMPLETE_USAGE = "core complete [MODEL] [ARGUMENTS]"
COMPLETE_SUMMARY = (
    "Have a model continue a text as it is, without a chat template; where the model is found is as with core chat."
)
INTERRUPTED = 130
"""Exit code when Ctrl-C interrupts a single answer, as for every command."""
ENGINE_ROW = ("[MODEL] [ARGUMENTS]", "As of core serve, for an engine of its own; not with --url.")


class TargetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of chat and complete."""

    url: Annotated[str | None, Arg("Server: http://HOST:PORT/v1, https://HOST/v1 or unix:/PATH.")] = None
    model_name: Annotated[str | None, Arg("The model's name there. Unset: the server's first.")] = None
    api_key: Annotated[str | None, Arg("Key of the server. Unset: CORE_API_KEY.", secret=True)] = None
    max_tokens: Annotated[int | None, Arg("Most tokens of one answer.", ge=1)] = None
    temperature: Annotated[float | None, Arg("0 for the most likely tokens. Unset: the model's own.", ge=0)] = None
    stats: Annotated[bool, Arg("Show tokens and speed after each answer, in a terminal.")] = True


class ChatOptions(TargetOptions, frozen=True, kw_only=True):
    """Options of chat."""

    quick: Annotated[str | None, Arg("Send one message, print the answer and leave.", short=("q",))] = None
    system_prompt: Annotated[str | None, Arg("Text before the conversation.")] = None
    file: Annotated[list[str] | None, Arg("Text files that go with the first message.", metavar="FILE...")] = None
    history: Annotated[
        str | None, Arg("File in which the conversation is kept, and from which it goes on.", metavar="FILE")
    ] = None


class CompleteOptions(TargetOptions, frozen=True, kw_only=True):
    """Options of complete."""

    quick: Annotated[str | None, Arg("Continue one text, print that and leave.", short=("q",))] = None
    max_tokens: Annotated[int | None, Arg("Most tokens of one continuation.", ge=1)] = 128


def chat(words: list[str]) -> int:
    """Run `core chat`; returns the exit code."""
    if take_help(words) is not None:
        _show_help(CHAT_USAGE, CHAT_SUMMARY, ChatOptions)
        return 0
    options = take_options(ChatOptions, words)
    from core_commands.terminal.chat import PATH, Chat

    conversation = _conversation(options)
    message = _single_message(options.quick)

    def keep() -> None:
        if options.history is not None:
            conversation.save(options.history)

    with _teller(options, words, PATH, is_single=message is not None) as teller:
        return _run(Chat(teller, conversation, keep), message)


def complete(words: list[str]) -> int:
    """Run `core complete`; returns the exit code."""
    if take_help(words) is not None:
        _show_help(COMPLETE_USAGE, COMPLETE_SUMMARY, CompleteOptions)
        return 0
    options = take_options(CompleteOptions, words)
    from core_commands.terminal.complete import PATH, Completion

    text = _single_message(options.quick)
    with _teller(options, words, PATH, is_single=text is not None) as teller:
        return _run(Completion(teller), text)


def _run(talk: "Chat | Completion", message: str | None) -> int:
    """Run one turn for a single message, otherwise turns until the user leaves; returns the exit code."""
    if message is None:
        return talk.run()
    return 0 if talk.turn(message) else INTERRUPTED


def _conversation(options: ChatOptions) -> "Conversation":
    """Return the conversation so far. Raises UserError."""
    from core_commands.terminal.conversation import Conversation, attach_all
    from core_commands.terminal.typed import unicode

    conversation = Conversation()
    if options.history is not None and os.path.exists(own_path(options.history)):
        conversation.load(options.history)
    if options.system_prompt:
        conversation.system = unicode(options.system_prompt, "--system-prompt")
    attach_all(conversation, options.file or ())
    return conversation


def _single_message(quick: str | None) -> str | None:
    """Return the message of `--quick` or of a pipe; None at an interactive terminal. Raises UserError for an empty one."""
    if quick is None and sys.stdin.isatty():
        return None
    from core_commands.terminal.typed import piped, unicode

    message = piped() if quick is None else unicode(quick, "--quick")
    if not message:
        raise UserError("The message is empty; type one after --quick, or pipe it in.")
    return message


@contextmanager
def _teller(options: TargetOptions, words: list[str], path: str, *, is_single: bool) -> "Iterator[Teller]":
    """Open the object that sends requests to the model. path: of requests. is_single: a single message, without a line
    about speed.
    """
    from core_commands.terminal.answers import Teller
    from core_commands.terminal.target import target

    parsed = parse_engine_arguments(words, own_flags(type(options)))
    with target(parsed, options.url, options.model_name, options.api_key) as found:
        yield Teller(found, path, _fields(options), stats=options.stats and not is_single)


def _fields(options: TargetOptions) -> dict[str, Any]:
    """Return the fields of every request."""
    values = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    return {name: value for name, value in values.items() if value is not None}


def _show_help(usage: str, summary: str, struct: type[msgspec.Struct]) -> None:
    from core.args.show import Section, show

    show(usage, summary, [option_section("Options", struct), Section("Engine", (ENGINE_ROW,))])
