"""Files of the commands that look into engines: records of starts, configurations of `core tune`, lists of models, datasets.

Owns: writing good ones, and reading as `core plugins doctor`, `core serve --config`, `core serve --models`, `core tune
--dataset` and `core bench card` read. Called by: the table of targets.
"""

import itertools
import json
import random
from pathlib import Path

from core.api.errors import ConfigError, CoreError
from core.api.plugin_choices import ResolvedPlugin
from core.args.arg import Given
from core_commands.bench.dataset_options import DatasetOptions
from core_commands.bench.file_prompts import custom, sharegpt
from core_commands.card.timings import timings_of
from core_commands.several.entries import _from_file
from core_config.arguments.sources import merge
from core_observers.runs.book import RunBook
from core_observers.runs.compare import changes_between, difference, other_differences
from core_observers.runs.quarantine import Culprit, add_culprits, held, read_culprits
from core_observers.runs.run import Package, Run, Times

KEY = "key"
STARTS = (f"runs/{KEY}.json", "quarantine.json")
CONFIGURATIONS = ("tuned.yaml", "models.yaml")
LOADS = ("prompts.jsonl", "conversations.json", "answer.json")
TUNED = """# core tune 0.1.0, numerics x
model: MODEL  # given
max_num_mixed_batched_tokens: 96  # +10.4% (95%: +8.0% to +12.9%, 8 pairs)
speculative_config: {method: ngram, num_speculative_tokens: 4}
kv_cache_memory_bytes: 16M
goodput: [ttft:500]
"""
MODELS = """- {model: a.gguf, pinned: true, max_model_len: 4096}
- model: b
  idle_timeout: 30
  name: c
"""


def _run(package: Package) -> Run:
    return Run(
        number=0,
        first="2026-01-01T00:00:00+00:00",
        last="2026-01-01T00:00:00+00:00",
        version="1",
        numerics="n",
        environment={"torch": "2"},
        choices={"attention": ["p"]},
        packages=[package],
        tokens=[1, 2],
        logprobs=["0x1p-1", "0x1p-2"],
        times=[Times(1.0, 0.1, 0.01)],
    )


def make_starts(folder: Path) -> None:
    """Write two runs whose plugin differs, and a plugin in quarantine."""
    book = RunBook(folder, KEY)
    for version in ("1.0", "1.1"):
        book.add(_run(Package("p", version, "core_p", version, ("attention.p",))))
    add_culprits(folder, [Culprit(Package("p", "1.1", "core_p", "1.1", ("attention.p",)), "it is slow")])


def read_starts(folder: Path) -> None:
    """Read them as the doctor and the next start do."""
    book = RunBook(folder, KEY)
    runs = book.runs()
    for before, now in itertools.pairwise(runs):
        str(difference(before, now))
        other_differences(before, now)
        for change in changes_between(before.packages, now.packages):
            str(change.label)
            if change.before is not None:
                book.copies.find(change.before)
    culprits = read_culprits(folder)
    held(culprits, [ResolvedPlugin(kind="attention", name="p", target="core_p:Manifest")])
    book.add(_run(Package("p", "1.2", "core_p", "x", ("attention.p",))))
    add_culprits(folder, culprits)


def make_configurations(folder: Path) -> None:
    """Write what `core tune` wrote, and a list of models."""
    for name, text in zip(CONFIGURATIONS, (TUNED, MODELS), strict=True):
        (folder / name).write_text(text)


def read_configurations(folder: Path) -> None:
    """Read them as `core serve` does, up to the models' own files."""
    problems = [*merge({"config": str(folder / CONFIGURATIONS[0])}, {}).problems]
    _from_file(Given(str(folder / CONFIGURATIONS[1]), "argument"), problems)
    if problems:
        raise ConfigError(problems)


def make_loads(folder: Path) -> None:
    """Write datasets, and an answer with times."""
    rows = [{"prompt": "one two", "output_tokens": 3}, {"prompt": "three"}]
    (folder / LOADS[0]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    turns = [{"from": "human", "value": "word " * 8}, {"from": "gpt", "value": "word " * 9}]
    (folder / LOADS[1]).write_text(json.dumps([{"conversations": turns}]))
    times = {"queue_ms": 0.4, "prompt_ms": 24.6, "predicted_ms": 44.6, "predicted_per_token_ms": 6.371}
    (folder / LOADS[2]).write_text(json.dumps({"object": "text_completion", "timings": times}))


def read_loads(folder: Path) -> None:
    """Read each as the benchmarks do; one that is refused keeps no other from being read."""
    refusals = []
    steps = {
        LOADS[0]: lambda path: custom(DatasetOptions(dataset_path=str(path), custom_output_len=None), random.Random(0)),
        LOADS[1]: lambda path: sharegpt(DatasetOptions(dataset_path=str(path)), random.Random(0)),
        LOADS[2]: lambda path: sum(timings_of(path.read_bytes()).values()),
    }
    for name, read in steps.items():
        try:
            read(folder / name)
        except CoreError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]
