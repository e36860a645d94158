"""Sources of prompts, one row of `DATASETS` each.

Owns: the rows, and their options. Never does: call a tokenizer or a server; reports use the token counts of the server.
Called by: `core bench`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from core.api.errors import UserError
from core_commands.bench.dataset_options import DatasetOptions
from core_commands.bench.file_prompts import custom, sharegpt
from core_commands.bench.made_prompts import prefix_repetition, random_words, schema_bound
from core_commands.bench.workload import Prompt

REFUSED = {
    "hf": "it is fetched from the network; save it as a file and use --dataset-name custom",
    "burstgpt": "name its file with --dataset-name custom, as JSON lines with a prompt each",
    "sonnet": "its file is not part of this package; --dataset-name prefix_repetition shares prefixes too",
    "random-mm": "images and sound are not served",
    "random-rerank": "bench serve measures answers of texts",
}
"""Datasets of vLLM that are not supported, with an alternative."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A source of prompts.

    help: for the usage text.
    make: generates the prompts.
    needs_file: whether --dataset-path is required.
    takes_length: whether --input-len sets their length.
    """

    help: str
    make: Callable[[DatasetOptions, random.Random], list[Prompt]]
    needs_file: bool = False
    takes_length: bool = False


def prompts(options: DatasetOptions) -> list[Prompt]:
    """Return the requests that `options` describe: the same ones for the same seed. Raises UserError."""
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


DATASETS = {
    "random": Dataset("random words; --random-input-len, --random-output-len", random_words, takes_length=True),
    "custom": Dataset("a file of JSON lines with a prompt each, or of plain lines", custom, needs_file=True),
    "sharegpt": Dataset("conversations in ShareGPT's form", sharegpt, needs_file=True),
    "prefix_repetition": Dataset("a few prefixes with many endings", prefix_repetition),
    "json": Dataset("answers held to a JSON schema", schema_bound, takes_length=True),
}
