"""`core kv audit | check | list | verify | clear`.

Owns: the commands' arguments, output and exit codes. Never does: compare prompts, or read a page (`core_commands.kv` does).
Called by: the frame.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from core.api.errors import UserError
from core.args.arg import Arg
from core.args.show import show
from core.commands.printable import safe
from core.commands.tables import print_json, print_table
from core.commands.words import take_help
from core_commands.cli.options import parse_engine_arguments
from core_commands.cli.own_options import option_section, own_flags, take_options

if TYPE_CHECKING:
    from core_apis.prepare.preparation import Preparation
    from core_commands.kv.audit import Row
    from core_commands.kv.journal_log import Recorded
    from core_commands.kv.log_file import Logged
    from core_commands.kv.pages import PageFiles

AUDIT = "core kv audit LOG [MODEL] [ARGUMENTS]"
ABOUT = (
    "Render and tokenize the logged chats in their order, without weights, and show for each turn the tokens that an earlier "
    "prompt had, those that are computed again, and why. LOG has a body a line, or is a batch file, or the directory of a "
    "--request-journal."
)
CHECK = "core kv check HOST:PORT HOST:PORT [--key-file FILE]"
CHECKS = (
    "Connect to two engines that hand KV pages to each other (their kv_ip and kv_port, or listen): compare weights, numerics "
    "and layout, measure the way from here to each, and send a page of the first to the second and back. Exit with 1 and the "
    "reason if anything is wrong."
)
KEY = "CORE_API_KEY"


class AuditOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of kv audit."""

    most: Annotated[
        int | None,
        Arg(
            "Exit with 1 if more tokens than this are computed again, or a turn is refused: nothing is known of it.",
            ge=0,
        ),
    ] = None
    url: Annotated[
        str | None, Arg("A server to send the requests to, for one token each, and to compare its cached tokens with.")
    ] = None
    api_key: Annotated[str | None, Arg(f"With --url: key of the server. Unset: {KEY}.", secret=True)] = None
    json: Annotated[bool, Arg("Print JSON.")] = False


def kv_audit(words: list[str]) -> int:
    """Run `core kv audit`; returns the exit code."""
    if take_help(words) is not None:
        show(AUDIT, ABOUT, [option_section("Options", AuditOptions)])
        return 0
    options = take_options(AuditOptions, words)
    if not words or words[0].startswith("-"):
        raise UserError(f"core kv audit: a log is missing; expected: {AUDIT}.")
    name = words.pop(0)
    from core_commands.kv.audit import REFUSED, Audit

    log = _read_log(name)
    audit = Audit(_preparation(words))
    rows = [audit.row(logged) for logged in log]
    if options.url is not None:
        from core_commands.client.http_endpoint import HttpEndpoint
        from core_commands.kv.asking import ask_cached

        endpoint = HttpEndpoint(options.url, options.api_key or os.environ.get(KEY))
        for row, cached in zip(rows, asyncio.run(ask_cached(endpoint, log)), strict=True):
            row.cached = cached
    again, refused = sum(row.again for row in rows), sum(row.cause == REFUSED for row in rows)
    if options.json:
        print_json({"turns": rows, "tokens": sum(row.tokens for row in rows), "again": again, "refused": refused})
    else:
        _print_rows(rows, again, refused, with_cached=options.url is not None)
    return int(options.most is not None and (again > options.most or refused > 0))


def _read_log(name: str) -> "Sequence[Logged | Recorded]":
    """Return the requests of a file, or of the journal in a folder. Raises UserError."""
    from core_commands.kv.journal_log import read_journal
    from core_commands.kv.log_file import read_log

    is_journal = Path(name).expanduser().is_dir()
    log: Sequence[Logged | Recorded] = list(read_journal(name)) if is_journal else list(read_log(name))
    if not log:
        raise UserError(
            f"{name}: there is no chat in it; expected at least one, as an empty log says nothing of an agent."
        )
    return log


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of kv check."""

    key_file: Annotated[str | None, Arg("The key file of both engines. Unset: both are on this machine.")] = None
    json: Annotated[bool, Arg("Print JSON.")] = False


def kv_check(words: list[str]) -> int:
    """Run `core kv check`; returns the exit code."""
    if take_help(words) is not None:
        show(CHECK, CHECKS, [option_section("Options", CheckOptions)])
        return 0
    options = take_options(CheckOptions, words)
    if len(words) < 2 or words[0].startswith("-"):
        raise UserError(f"core kv check: two addresses are needed; expected: {CHECK}.")
    first, second = words.pop(0), words.pop(0)
    if words:
        raise UserError(f"core kv check {words[0]}: unexpected; expected: {CHECK}.")
    from core_commands.kv.check import checked
    from core_kv_connectors.peers.connector import address_of
    from core_kv_connectors.tiers.shared_files import read_key

    secret = b"" if options.key_file is None else read_key(options.key_file, "--key-file")
    result = checked(address_of(first, "core kv check"), address_of(second, "core kv check"), secret)
    if options.json:
        print_json(result)
    else:
        rows = [
            [one.place, f"{one.latency_s * 1e6:.0f} µs", f"{one.bandwidth / 1e6:.0f} MB/s", str(one.page_bytes)]
            for one in result.engines
        ]
        if rows:
            print_table(("engine", "there and back", "pages from it", "bytes a page"), rows)
        print(result.problem or "They agree, and a page of the first came back from the second as it was.")
    return int(bool(result.problem))


class PageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of kv list, verify and clear."""

    key_file: Annotated[
        str | None,
        Arg("The key file of a directory that others may write to (--kv-connectors file). Unset: nobody may."),
    ] = None


def kv_list(words: list[str]) -> int:
    """Run `core kv list`; returns the exit code."""
    files = _files("list", "List the KV pages below a --kv-offloading-disk-path, by fingerprint.", words)
    if files is None:
        return 0
    from core_config.stages.memory import human_bytes

    pages = files.by_fingerprint()
    rows = [
        [each.fingerprint, str(each.num_pages), human_bytes(each.num_bytes), _age(each.used) if each.num_pages else ""]
        for each in pages
    ]
    print_table(("fingerprint", "pages", "size", "last used"), rows)
    return 0


def kv_verify(words: list[str]) -> int:
    """Run `core kv verify`; returns the exit code."""
    files = _files("verify", "Read every KV page below a directory and check it; exit with 1 if one is damaged.", words)
    if files is None:
        return 0
    num_damaged = 0
    for path, problem in files.damaged():
        num_damaged += 1
        print(f"{path}: {problem}")
    print(f"{len(files.all())} pages, {num_damaged} damaged")
    return int(num_damaged > 0)


def kv_clear(words: list[str]) -> int:
    """Run `core kv clear`; returns the exit code."""
    files = _files("clear", "Delete all KV pages below a directory. Engines that use it compute them again.", words)
    if files is None:
        return 0
    count, kept = files.clear()
    for path in kept:
        print(f"{path}: cannot be deleted")
    print(f"{count} pages deleted")
    return int(bool(kept))


def _files(command: str, about: str, words: list[str]) -> "PageFiles | None":
    """Return the pages in the directory that a command names; None once its help was shown."""
    usage = f"core kv {command} DIR [--key-file FILE]"
    if take_help(words) is not None:
        show(usage, about, [option_section("Options", PageOptions)])
        return None
    options = take_options(PageOptions, words)
    if not words or words[0].startswith("-"):
        raise UserError(f"core kv {command}: a directory is missing; expected: {usage}.")
    root = words.pop(0)
    if words:
        raise UserError(f"core kv {command} {words[0]}: unexpected; expected: {usage}.")
    from core_commands.kv.pages import PageFiles
    from core_kv_connectors.tiers.shared_files import read_key

    return PageFiles(root, b"" if options.key_file is None else read_key(options.key_file, "--key-file"))


def _preparation(words: list[str]) -> "Preparation":
    """Return the preparation that a server with these arguments has."""
    from core_apis.prepare.preparation import Preparation
    from core_apis.prepare.settings import settings_of
    from core_config.resolve import resolve
    from core_frontend.prompts.tokenizing import load_tokenizer

    parsed = parse_engine_arguments(words, own_flags(AuditOptions))
    resolution = resolve(parsed.values, context="explain", problems=parsed.problems)
    server, model = resolution.server, resolution.engine.model
    tokenizer = load_tokenizer(resolution.manifest.tokenizer, resolution.engine)
    if tokenizer is None:
        raise UserError("core kv audit: the model has no tokenizer; name one with --tokenizer.")
    # A log may name any model: its bodies are those of another server.
    engine = {"most_prompts": {}, "max_num_queued_tokens": 0, "adapters": True, "remembers": True}
    settings = settings_of(model, server, tokenizer, **engine)
    return Preparation(settings, tokenizer)


def _print_rows(rows: Sequence["Row"], again: int, refused: int, *, with_cached: bool) -> None:
    heads = ["line", "tokens", "common", "again", *(["cached"] if with_cached else []), "cause", "where", "advice"]
    table: list[list[str]] = []
    for row in rows:
        cached = ["?" if row.cached is None else str(row.cached)] if with_cached else []
        numbers = [str(number) for number in (row.line, row.tokens, row.common, row.again)]
        table.append([*numbers, *cached, row.cause, safe(_where(row)), safe(row.advice)])
    print_table(heads, table, num_names=len(heads) - 2)
    total = sum(row.tokens for row in rows)
    of_them = f", {refused} of them refused" if refused else ""
    print(f"{len(rows)} {'turn' if len(rows) == 1 else 'turns'}{of_them}, {total} tokens, {again} computed again")


def _where(row: "Row") -> str:
    found = row.change
    if found is None:
        return ""
    message = "" if found.message is None else f"message {found.message} ({found.role}) "
    character = "" if found.character is None else f" at {found.character}"
    return f"{message}{found.field}{character}: {found.before[-12:]!r} | {found.after[:12]!r}"


def _age(used: float) -> str:
    return f"{max(0.0, time.time() - used) / 3600:.1f} h ago"
