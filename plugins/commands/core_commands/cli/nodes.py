"""`core nodes answer | check`.

Owns: the commands' arguments, output and exit codes. Never does: reach a machine (`core_commands.nodes` does). Called by: the
frame.
"""

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import msgspec

from core.api.errors import UserError
from core.args.arg import Arg
from core.args.show import show
from core.commands.printable import safe
from core.commands.tables import print_json, print_table
from core.commands.words import refuse_words, take_help
from core_commands.cli.own_options import option_section, take_options
from core_config.served.remote import DEFAULT_PORT
from core_config.served.server_config import RemoteSettings
from core_supervision.link.secured import is_loopback, read_secret

ANSWER = "core nodes answer [MODEL] [ARGUMENTS]"
CHECK = "core nodes check HOST[:PORT]... [ARGUMENTS]"
ABOUT_ANSWER = (
    "Let other machines check this one, before a group of engines uses the same address, port and key file. MODEL: a "
    "checkpoint whose weights are compared by a digest."
)
ABOUT_CHECK = (
    "Have each of the machines, on all of which `core nodes answer` runs, reach each other one: route, port, key, delay, "
    "bandwidth, versions and weights. Exit with 1 and the culprit's name if something is wrong."
)
KEY_FILE = "File with the secret of the group, as --engine-key-file of `core serve`."


class AnswerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of nodes answer."""

    address: Annotated[str, Arg("Address to listen at; one that other machines reach needs --key-file.")] = "127.0.0.1"
    port: Annotated[int, Arg("Port to listen at.", ge=1, le=65535)] = DEFAULT_PORT
    key_file: Annotated[str | None, Arg(KEY_FILE)] = None


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of nodes check."""

    port: Annotated[int, Arg("Port of machines that are named without one.", ge=1, le=65535)] = DEFAULT_PORT
    key_file: Annotated[str | None, Arg(KEY_FILE)] = None
    json: Annotated[bool, Arg("Print JSON.")] = False


def nodes_answer(words: list[str]) -> int:
    """Run `core nodes answer` until a signal; returns the exit code."""
    if take_help(words) is not None:
        show(ANSWER, ABOUT_ANSWER, [option_section("Options", AnswerOptions)])
        return 0
    options = take_options(AnswerOptions, words)
    model = words.pop(0) if words and not words[0].startswith("-") else None
    refuse_words("nodes answer", words)
    if model is not None and not Path(model).exists():
        raise UserError(f"core nodes answer: {model}: no such file or directory.")
    if options.key_file is None and not is_loopback(options.address):
        raise UserError(f"--address {options.address}: other machines reach it; give --key-file, or use 127.0.0.1.")
    from core_commands.nodes.answering import answer, facts_of

    settings = _settings(options.address, options.port, options.key_file)
    facts = facts_of(model)

    async def until_stopped() -> None:
        task = asyncio.ensure_future(answer(settings, facts))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    print(f"Answering at {options.address}:{options.port}.", flush=True)
    asyncio.run(until_stopped())
    return 0


def nodes_check(words: list[str]) -> int:
    """Run `core nodes check`; returns the exit code."""
    if take_help(words) is not None:
        show(CHECK, ABOUT_CHECK, [option_section("Options", CheckOptions)])
        return 0
    options = take_options(CheckOptions, words)
    nodes = [_node(word, options.port) for word in words]
    if not nodes:
        raise UserError(f"core nodes check: a machine is missing; expected: {CHECK}.")
    from core_commands.nodes.checking import check, culprits

    pairs = asyncio.run(check(_settings("", options.port, options.key_file), nodes))
    found = culprits(pairs)
    if options.json:
        print_json({"pairs": pairs, "culprits": found})
        return int(bool(found))
    rows = [
        [pair.source, pair.target, each.interface, *_measured(each.delay_ms, each.mib_s), each.problem or "good"]
        for pair in pairs
        for each in [pair.reached]
    ]
    print_table(("from", "to", "by", "delay", "rate", "result"), [[safe(cell) for cell in row] for row in rows])
    for sentence in found or ["Every machine reaches every other one, and versions and weights are equal."]:
        print(safe(sentence))
    return int(bool(found))


def _measured(delay_ms: float, mib_s: float) -> tuple[str, str]:
    return (f"{delay_ms:.1f} ms", f"{mib_s:.0f} MiB/s") if mib_s else ("", "")


def _node(word: str, port: int) -> tuple[str, int]:
    """Return host and port. Raises UserError."""
    if word.startswith("-"):
        raise UserError(f"core nodes check: {word} is no argument of this command; expected: {CHECK}.")
    host, colon, digits = word.rpartition(":")
    if not colon or "]" in digits:
        return word.strip("[]"), port
    if not digits.isdigit() or not 0 < int(digits) < 65536:
        raise UserError(f"core nodes check: {word}: expected HOST or HOST:PORT.")
    return host.strip("[]"), int(digits)


def _settings(address: str, port: int, key_file: str | None) -> RemoteSettings:
    path = None if key_file is None else str(Path(key_file).expanduser().absolute())
    if path is not None:
        read_secret(path)
    return RemoteSettings(role="api_server", address=address, port=port, key_file=path)
