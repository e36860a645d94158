"""Generated prompts, from words that are one token each in most vocabularies.

Owns: the datasets random, prefix_repetition and json. Never does: call a tokenizer. Called by: the table of datasets.
"""

from __future__ import annotations

import random
from importlib import resources
from typing import Any

import msgspec

from core.api.errors import UserError
from core_commands.bench.dataset_options import DatasetOptions
from core_commands.bench.workload import Prompt
from core_commands.cli.own_files import own_path

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


def random_words(options: DatasetOptions, draw: random.Random) -> list[Prompt]:
    """Generate random words; lengths vary by --random-range-ratio around the given ones."""
    known = _words()
    prefix = _text(known, draw, options.random_prefix_len)
    made: list[Prompt] = []
    for _ in range(options.num_prompts):
        size = _spread(options.input_len or options.random_input_len, options.random_range_ratio, draw)
        answer = _spread(options.output_len or options.random_output_len, options.random_range_ratio, draw)
        made.append(Prompt(_joined(prefix, _text(known, draw, size)), answer))
    return made


def prefix_repetition(options: DatasetOptions, draw: random.Random) -> list[Prompt]:
    """Generate a few long prefixes, each with many endings, in random order."""
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


def schema_bound(options: DatasetOptions, draw: random.Random) -> list[Prompt]:
    """Generate requests whose answers are constrained to a JSON schema."""
    schema = DEFAULT_SCHEMA if options.json_schema_path is None else _schema(options.json_schema_path)
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    known = _words()
    made: list[Prompt] = []
    for _ in range(options.num_prompts):
        text = _text(known, draw, options.input_len or 32)
        question = f"Write a JSON object that fits the schema, about these words: {text}"
        made.append(Prompt(question, options.output_len or 128, {"response_format": form}))
    return made


def _schema(path: str) -> Any:
    try:
        schema = msgspec.json.decode(own_path(path).read_bytes())
    except OSError as error:
        raise UserError(f"--json-schema-path {path}: cannot be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise UserError(f"--json-schema-path {path}: no JSON: {error}.") from None
    return schema


def _words() -> list[str]:
    return resources.files("core_commands.bench").joinpath("words.txt").read_text().split()


def _text(known: list[str], draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(known, k=count))


def _joined(prefix: str, text: str) -> str:
    return f"{prefix} {text}" if prefix else text


def _spread(length: int, ratio: float, draw: random.Random) -> int:
    """Return a length from (1 - ratio) to (1 + ratio) times `length`."""
    low = int(length * (1 - ratio))
    high = int(length * (1 + ratio))
    return max(1, draw.randint(low, high))
