"""Where prompts come from: a row of `DATASETS` each.

Owns: these rows, and reading their files. Never does: ask a tokenizer or a server: random texts are made of words that are one
token each in most vocabularies, and reports have the numbers that the server counts. Called by: `core bench`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import msgspec

from core.api.errors import UserError
from core.args.own_files import own_path
from core.bench.dataset_options import DatasetOptions
from core.bench.workload import Prompt, estimated_tokens

LARGEST_DATASET = 4 * 1024**3
"""Bytes."""
SHORTEST_TURN = 4
LONGEST_PROMPT, LONGEST_CONVERSATION = 1024, 2048
"""Tokens of ShareGPT's conversations that are taken, as in everybody's benchmarks."""
DEFAULT_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
REFUSED = {
    "hf": "it is fetched from the network; save it as a file and use --dataset-name custom",
    "burstgpt": "name its file with --dataset-name custom, as JSON lines with a prompt each",
    "sonnet": "its file is not part of this package; --dataset-name prefix_repetition shares prefixes too",
    "random-mm": "images and sound are not served",
    "random-rerank": "bench serve measures answers of texts",
}
"""Names of vLLM's that are not here, with the way out."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Where prompts come from.

    help: for people.
    make: the prompts.
    needs_file: whether --dataset-path must name one.
    takes_length: whether --input-len says how long they are.
    """

    help: str
    make: Callable[[DatasetOptions, random.Random], list[Prompt]]
    needs_file: bool = False
    takes_length: bool = False


def prompts(options: DatasetOptions) -> list[Prompt]:
    """The requests that `options` describe: the same ones for the same seed. Raises UserError."""
    name = options.dataset_name
    if name in REFUSED:
        raise UserError(f"--dataset-name {name}: {REFUSED[name]}.")
    dataset = DATASETS[name]
    if dataset.needs_file and options.dataset_path is None:
        raise UserError(f"--dataset-name {name}: needs a file; name it with --dataset-path.")
    if not dataset.needs_file and options.dataset_path is not None:
        raise UserError(f"--dataset-path: --dataset-name {name} reads no file; leave one of them out.")
    if options.input_len is not None and not dataset.takes_length:
        raise UserError(f"--input-len: --dataset-name {name} has prompts of other lengths; leave it out.")
    made = dataset.make(options, random.Random(options.seed))
    if not made:
        raise UserError(f"{options.dataset_path}: no usable prompt in it.")
    return made


def _random(options: DatasetOptions, draw: random.Random) -> list[Prompt]:
    """Random words; lengths spread by --random-range-ratio around the given ones."""
    known = _words()
    prefix = _text(known, draw, options.random_prefix_len)
    made: list[Prompt] = []
    for _ in range(options.num_prompts):
        size = _spread(options.input_len or options.random_input_len, options.random_range_ratio, draw)
        answer = _spread(options.output_len or options.random_output_len, options.random_range_ratio, draw)
        made.append(Prompt(_joined(prefix, _text(known, draw, size)), answer))
    return made


def _prefix_repetition(options: DatasetOptions, draw: random.Random) -> list[Prompt]:
    """A few long prefixes, each with many endings, in random order."""
    known = _words()
    prefixes = [
        _text(known, draw, options.prefix_repetition_prefix_len) for _ in range(options.prefix_repetition_num_prefixes)
    ]
    answer = options.output_len or options.prefix_repetition_output_len
    made: list[Prompt] = []
    for number in range(options.num_prompts):
        prefix = prefixes[number % len(prefixes)]
        suffix = _text(known, draw, options.prefix_repetition_suffix_len)
        made.append(Prompt(_joined(prefix, suffix), answer))
    draw.shuffle(made)
    return made


def _json(options: DatasetOptions, draw: random.Random) -> list[Prompt]:
    """Answers held to a JSON schema."""
    schema = DEFAULT_SCHEMA if options.json_schema_path is None else _schema(options.json_schema_path)
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    known = _words()
    made: list[Prompt] = []
    for _ in range(options.num_prompts):
        text = _text(known, draw, options.input_len or 32)
        question = f"Write a JSON object that fits the schema, about these words: {text}"
        made.append(Prompt(question, options.output_len or 128, {"response_format": form}))
    return made


def _custom(options: DatasetOptions, draw: random.Random) -> list[Prompt]:
    """JSON lines with `prompt`, and maybe `output_tokens`; or any text file, a prompt a line."""
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


def _sharegpt(options: DatasetOptions, draw: random.Random) -> list[Prompt]:
    """Conversations in ShareGPT's form: the first question is asked, the answer's length is that of the one in the file."""
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
    """As many as are wanted, in random order; from the beginning again where the file has fewer."""
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


def _schema(path: str) -> Any:
    try:
        schema = msgspec.json.decode(own_path(path).read_bytes())
    except OSError as error:
        raise UserError(f"--json-schema-path {path}: cannot be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise UserError(f"--json-schema-path {path}: no JSON: {error}.") from None
    return schema


def _words() -> list[str]:
    return resources.files("core.bench").joinpath("words.txt").read_text().split()


def _text(known: list[str], draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(known, k=count))


def _joined(prefix: str, text: str) -> str:
    return f"{prefix} {text}" if prefix else text


def _spread(length: int, ratio: float, draw: random.Random) -> int:
    """A length from (1 - ratio) to (1 + ratio) times `length`."""
    low = int(length * (1 - ratio))
    high = int(length * (1 + ratio))
    return max(1, draw.randint(low, high))


DATASETS = {
    "random": Dataset("random words; --random-input-len, --random-output-len", _random, takes_length=True),
    "custom": Dataset("a file of JSON lines with a prompt each, or of plain lines", _custom, needs_file=True),
    "sharegpt": Dataset("conversations in ShareGPT's form", _sharegpt, needs_file=True),
    "prefix_repetition": Dataset("a few prefixes with many endings", _prefix_repetition),
    "json": Dataset("answers held to a JSON schema", _json, takes_length=True),
}
