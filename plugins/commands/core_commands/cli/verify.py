"""`core verify RECEIPT --request BODY [MODEL ARGUMENTS]`: whether an answer is the model's own, to the bit.

Owns: the command's arguments, files, and its last line. Never does: compare (`replay.verify` does). Called by: the frame.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from core.api.errors import CoreError, UserError
from core.args.arg import Arg
from core.commands.printable import safe
from core.commands.words import take_help
from core_commands.cli.options import parse_engine_arguments
from core_commands.cli.own_files import own_path
from core_commands.cli.own_options import option_section, own_flags, take_options

if TYPE_CHECKING:
    from core_commands.replay.computed import Computed, Given
    from core_commands.replay.engine import ReplayEngine
    from core_commands.replay.verify import Verdict
    from core_observers.receipts.issuer import ReceiptIssuer
    from core_observers.receipts.receipt import Receipt
    from core_observers.receipts.weights import WeightsDigest

USAGE = "core verify RECEIPT --request BODY [--opening KEY] [--answer FILE] [MODEL] [ARGUMENTS]"
SUMMARY = (
    "Compute a request again with an engine of its own, and compare everything with the receipt of its answer. Exit code 0: "
    "equal to the bit; 1: the first difference; 2: it cannot be checked."
)
LARGEST = 256 << 20


class VerifyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of verify."""

    request: Annotated[str | None, Arg("File with the body of the request.", metavar="BODY")] = None
    path: Annotated[str | None, Arg("Path that it was sent to. Unset: known from its fields.", metavar="PATH")] = None
    opening: Annotated[
        str | None, Arg("The `opening` that came with the receipt. Unset: as in RECEIPT.", metavar="KEY", secret=True)
    ] = None
    answer: Annotated[
        str | None, Arg("The answer as the client kept it: it is compared too, and makes this quicker.", metavar="FILE")
    ] = None
    receipt_key: Annotated[
        str | None, Arg("The server's public key, or shared secret: the signature is checked.", metavar="FILE")
    ] = None
    except_for: Annotated[
        list[str] | None,
        Arg("Fields that may differ: version, plugins, tokenizer, template.", commas=True, metavar="FIELD"),
    ] = None


@dataclass(frozen=True)
class Question:
    """What is to be verified. receipts: one for each prompt, with its opening. in_session: whether the body named a session."""

    receipts: "list[tuple[Receipt, bytes]]"
    path: str
    body: dict[str, Any]
    answer: dict[str, Any] | None
    skipped: tuple[str, ...]
    in_session: bool = False


def verify(words: list[str]) -> int:
    """Run the command; returns the exit code."""
    if take_help(words) is not None:
        _show_help()
        return 0
    options = take_options(VerifyOptions, words)
    if not words or words[0].startswith("-"):
        raise UserError(f"The receipt is missing: {USAGE}.")
    source = words.pop(0)
    parsed = parse_engine_arguments(words, own_flags(VerifyOptions))
    question = _question(source, options)
    _check_signatures(question, options.receipt_key)
    from core_commands.replay.engine import run_replay

    verdicts: list[Verdict] = []

    async def work(engine: "ReplayEngine") -> int:
        verdicts.append(await _verdict(engine, question))
        return verdicts[0].code

    try:
        code = run_replay(parsed, work)
    except CoreError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"Not checked: {error}") from error
    print(safe(verdicts[0].sentence), file=sys.stderr if code else sys.stdout)
    return code


async def _verdict(engine: "ReplayEngine", question: Question) -> "Verdict":
    from core_apis.receipts import engine_issuer
    from core_commands.replay.known_tokens import given_tokens
    from core_commands.replay.verify import EQUAL, OTHER, UNCHECKED, Verdict, check_answer, check_tokens
    from core_observers.receipts.weights import WeightsDigest

    context = engine.context
    digest = WeightsDigest(context.engine.config.model.model)
    issuer = engine_issuer(context.engine, context.server.chat_template, digest)
    verdict = _other_engine(question, issuer, digest)
    if verdict is not None:
        return verdict
    given = [] if question.answer is None else [given_tokens(question.answer, context.engine.tokenizer)]
    seeds = [_seed(receipt) for receipt, _ in question.receipts]
    adapted = any(receipt.adapter for receipt, _ in question.receipts)
    body = await engine.renamed(question.body, adapted=adapted)
    answer, computed = await engine.compute(question.path, body, given, seeds)
    if len(computed) != len(question.receipts):
        return Verdict(
            OTHER, f"prompts: there are {len(question.receipts)} receipts, the request has {len(computed)} prompts."
        )
    for (receipt, opening), one in zip(question.receipts, computed, strict=True):
        verdict = check_tokens(receipt, one, issuer, opening)
        if verdict is not None and question.in_session and verdict.sentence.startswith("prompt: "):
            why = "session: the server went on with tokens that it kept, and not with those of the texts"
            return Verdict(UNCHECKED, f"{why} ({verdict.sentence.removesuffix('.')}).")
        if verdict is not None:
            exact = await _exact(engine, receipt, one, given[0] if given else [], opening)
            return Verdict(verdict.code, f"{verdict.sentence}{exact}")
    verdict = None if question.answer is None else check_answer(question.answer, answer)
    if verdict is not None:
        return verdict
    num_tokens = sum(len(tokens) for one in computed for _, tokens, _ in one.answers)
    return Verdict(EQUAL, f"Equal to the bit: {num_tokens} tokens{_doubt(question)}.")


def _doubt(question: Question) -> str:
    """Return what weakens an equal answer; empty: nothing does."""
    kinds = {receipt.weights.kind for receipt, _ in question.receipts}
    return "" if kinds == {"whole"} else " (the weights were only sampled when it was issued)"


def _other_engine(question: Question, issuer: "ReceiptIssuer", digest: "WeightsDigest") -> "Verdict | None":
    """Return in what this engine differs from the one that issued a receipt; None: in nothing."""
    from core_commands.replay.verify import check_place, check_weights

    for receipt, _ in question.receipts:
        verdict = check_place(receipt, issuer.facts, question.skipped)
        if verdict is None:
            whole = digest.finish() if receipt.weights.kind == "whole" else digest.fact()
            verdict = check_weights(receipt, whole, digest.sampled)
        if verdict is not None:
            return verdict
    return None


async def _exact(
    engine: "ReplayEngine", receipt: "Receipt", computed: "Computed", given: "Given", opening: bytes
) -> str:
    """Return which token differs, where the client's answer has the token ids that the receipt is about; else nothing."""
    from core_commands.replay.tokens import first_difference
    from core_observers.receipts.chain import Chain

    prompt = Chain.opened(opening).extend(computed.request.prompt_token_ids)
    for choice in receipt.choices:
        known = given[choice.index] if choice.index < len(given) else []
        if prompt.choice(choice.index).extend(known).end == choice.end:
            found = await first_difference(engine, computed, choice.index, known)
            if found is not None:
                return f" It is {found}."
    return ""


def _question(source: str, options: VerifyOptions) -> Question:
    """Read all files. Raises UserError."""
    from core_commands.replay.engine import path_of
    from core_observers.receipts.receipt import opening_bytes, read_receipts

    if options.request is None:
        raise UserError("--request BODY is missing: the file with the body of the request.")
    receipts = read_receipts(_read(source), source)
    if options.opening is not None and len(receipts) > 1:
        raise UserError("--opening: there are several receipts; keep the opening of each with it, in the file.")
    rows = []
    for receipt, opening in receipts:
        key = options.opening or opening
        if not key:
            raise UserError("--opening KEY is missing: the `opening` that came with the receipt.")
        rows.append((receipt, opening_bytes(key)))
    body = _object(options.request)
    _check_repeatable(body, [receipt for receipt, _ in rows])
    answer = None if options.answer is None else _object(options.answer)
    # The texts of earlier turns are in the body as well; the server keeps their tokens, which are mostly the same.
    in_session = body.pop("session", None) is not None
    return Question(rows, options.path or path_of(body), body, answer, tuple(options.except_for or ()), in_session)


def _check_repeatable(body: Mapping[str, Any], receipts: Sequence["Receipt"]) -> None:
    """Raise UserError for a request or an answer that cannot be computed again from what is given."""
    if body.get("previous_response_id") is not None:
        raise UserError(
            "previous_response_id: the request goes on with what the server kept, which is not in its body."
        )
    for receipt in receipts:
        ended = {choice.finish_reason for choice in receipt.choices} - {"stop", "length"}
        if ended:
            raise UserError(f"An answer ended by {sorted(map(str, ended))[0]}, which no computation repeats.")


def _seed(receipt: "Receipt") -> int:
    seed = receipt.sampling.get("seed")
    if not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise UserError("sampling.seed: the receipt has no valid seed.")
    return seed


def _check_signatures(question: Question, key_file: str | None) -> None:
    """Check the signatures, if a key is given. Raises UserError with exit code 2 for one that is not the server's."""
    if key_file is None:
        return
    from core_observers.receipts.signing import read_key

    key = read_key(key_file)
    for receipt, _ in question.receipts:
        why = key.check(receipt.plain(sealed=True), receipt.signature)
        if why:
            raise ForgedError(f"signature: {why}.")


class ForgedError(CoreError):
    """A signature is not that of the server; the exit code is 1."""


def _read(name: str) -> bytes:
    path = own_path(name)
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"{name}: {error.strerror or error}.") from None
    if len(data) > LARGEST:
        raise UserError(f"{name}: more than {LARGEST >> 20} MiB.")
    return data


def _object(name: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(_read(name))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{name}: no JSON: {error}.") from None
    if not isinstance(found, dict):
        raise UserError(f"{name}: expected a JSON object.")
    return found


def _show_help() -> None:
    from core.args.show import Section, show

    row = ("[MODEL] [ARGUMENTS]", "As of core serve, where the answer came from; without MODEL the embedded one.")
    show(USAGE, SUMMARY, [option_section("Options", VerifyOptions), Section("Engine", (row,))])
