"""Prompts from files.

Owns: the datasets custom and sharegpt. Never does: call a tokenizer; lengths missing in a file are estimated.
Called by: the table of datasets.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from core.api.errors import UserError
from core_commands.bench.dataset_options import DatasetOptions
from core_commands.bench.workload import Prompt, estimated_tokens
from core_commands.cli.own_files import own_path

LARGEST_DATASET = 4 * 1024**3
"""Limit on a dataset file in bytes."""
SHORTEST_TURN = 4
LONGEST_PROMPT, LONGEST_CONVERSATION = 1024, 2048
"""Limits in tokens on the ShareGPT conversations used, as is usual in benchmarks."""


def custom(options: DatasetOptions, draw: random.Random) -> list[Prompt]:
    """Read JSON lines with `prompt` and optionally `output_tokens`, or any text file with a prompt per line."""
    lines = [line for line in _read(options).split(b"\n") if line.strip()]
    found: list[Prompt] = []
    for number, line in enumerate(lines, 1):
        try:
            row: Any = msgspec.json.decode(line)
        except msgspec.DecodeError:
            row = {"prompt": line.decode(errors="replace")}
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
            raise UserError(f"{options.dataset_path}: line {number} has no text 'prompt'.")
        length = options.output_len or options.custom_output_len or row.get("output_tokens")
        if not isinstance(length, int) or length < 1:
            raise UserError(f"{options.dataset_path}: line {number}: output_tokens is {length!r}; expected 1 or more.")
        found.append(Prompt(row["prompt"], length))
    return _sampled(found, options, draw)


def sharegpt(options: DatasetOptions, draw: random.Random) -> list[Prompt]:
    """Read conversations in ShareGPT's form: the first question is sent, and the answer is as long as the one in the
    file.
    """
    try:
        rows = msgspec.json.decode(_read(options), type=list[_Conversation])
    except msgspec.DecodeError as error:
        raise UserError(f"{options.dataset_path}: not in ShareGPT's form, a list of conversations: {error}.") from None
    wanted = options.output_len or options.sharegpt_output_len
    found: list[Prompt] = []
    for row in rows:
        if len(row.conversations) < 2:
            continue
        question, answer = (turn.value for turn in row.conversations[:2])
        length = wanted or estimated_tokens(answer)
        size = estimated_tokens(question)
        is_short = size < SHORTEST_TURN or length < (1 if wanted else SHORTEST_TURN)
        if is_short or size > LONGEST_PROMPT or size + length > LONGEST_CONVERSATION:
            continue
        found.append(Prompt(question, length))
    return _sampled(found, options, draw)


class _Turn(msgspec.Struct):
    value: str


class _Conversation(msgspec.Struct):
    conversations: list[_Turn] = []


def _sampled(found: list[Prompt], options: DatasetOptions, draw: random.Random) -> list[Prompt]:
    """Return the wanted number of prompts, in random order, repeating them if the file has fewer."""
    draw.shuffle(found)
    count = options.num_prompts
    if not found or len(found) >= count or not options.oversample:
        return found[:count]
    return (found * (count // len(found) + 1))[:count]


def _read(options: DatasetOptions) -> bytes:
    path = own_path(options.dataset_path or "")
    try:
        if path.stat().st_size > LARGEST_DATASET:
            raise UserError(f"{path}: larger than {LARGEST_DATASET >> 30} GiB; take a part of it.")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
