"""The long run of the audit: clean rows that raise no alarm, and planted faults that are all found. For `make test-know`.

Owns: the two bars for each kind of layers, and the file in which a run that ends before they are reached is kept. Called by: a
person. It ends with 1 for an alarm or a fault that was missed.

    python -m tests.audit.bars --rows 100000 --seconds 500 --state FILE

Each run goes on where the one with the same file stopped, so that the whole fits into pieces of any length.
"""

import argparse
import json
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from core_observers.families.audit_metrics import CLEAN, CLEAN_ANSWERS
from tests.audit.audited import Audited, auditing, hit
from tests.audit.faulty import FAULTS
from tests.kv.conversations import checkpoint

FAMILIES = {"llama": "full attention", "gemma3": "sliding windows", "lfm2": "short convolutions", "mamba2": "Mamba 2"}
FAULTS_OF = ("llama", "gemma3", "lfm2")
"""Families whose first group has keys, which the faults damage."""
TIMES = 20
"""Steps in which each class of faults is planted."""


def fresh() -> dict[str, Any]:
    """What is known of a family before its first run. seed: of the next clean run. found, tried: faults."""
    return {"rows": 0, "answers": 0, "alarms": 0, "seed": 0, "found": 0, "tried": 0, "missed": [], "seconds": 0.0}


def clean_rows(engine: Audited, known: dict[str, Any], rows: int, until: float) -> None:
    """Compute clean requests of all kinds until so many rows were audited."""
    before = engine.counts()
    begun = dict(known)
    while known["rows"] < rows and time.monotonic() < until:
        known["seed"] += 1
        seed = known["seed"]
        engine.run(
            seed,
            max_tokens=24,
            temperature=seed % 3 / 2,
            repetition_penalty=1.0 + seed % 2 / 4,
            logprobs=2 if seed % 5 == 0 else None,
        )
        new = {kind: count - before.get(kind, 0) for kind, count in engine.counts().items()}
        known["rows"] = begun["rows"] + new.pop(CLEAN, 0)
        known["answers"] = begun["answers"] + new.pop(CLEAN_ANSWERS, 0)
        known["alarms"] = begun["alarms"] + sum(new.values())


def planted(engine: Audited, known: dict[str, Any], until: float) -> None:
    """Plant each fault in `TIMES` steps."""
    names = list(FAULTS)
    while known["tried"] < TIMES * len(names) and time.monotonic() < until:
        name, seed = names[known["tried"] // TIMES], known["tried"] % TIMES
        known["tried"] += 1
        if hit(engine, name, seed):
            known["found"] += 1
        else:
            known["missed"].append([name, seed])


def shown(states: dict[str, dict[str, Any]]) -> str:
    """The table."""
    lines = ["| layers | clean rows | answers computed again | alarms | planted faults found | seconds |"]
    lines.append("|---|---|---|---|---|---|")
    for family, known in states.items():
        faults = f"{known['found']} of {known['tried']}" if family in FAULTS_OF else ""
        lines.append(
            f"| {FAMILIES[family]} | {known['rows']:,} | {known['answers']:,} | {known['alarms']} | {faults} "
            f"| {known['seconds']:.0f} |"
        )
    total = sum(known["rows"] for known in states.values())
    return "\n".join([*lines, f"{total:,} clean rows in all"])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000, help="clean rows of all families together")
    parser.add_argument("--seconds", type=float, default=500.0, help="of this run")
    parser.add_argument("--state", type=Path, help="file that a further run goes on from")
    options = parser.parse_args()
    states: dict[str, dict[str, Any]] = {family: fresh() for family in FAMILIES}
    if options.state is not None:
        with suppress(FileNotFoundError):
            states |= json.loads(options.state.read_text())
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as place:
        for left, (family, known) in zip(range(len(states), 0, -1), states.items(), strict=True):
            begin = time.monotonic()
            until = begin + (end - begin) / left
            with auditing(checkpoint(family, Path(place) / family)) as engine:
                if family in FAULTS_OF:
                    planted(engine, known, until)
                clean_rows(engine, known, options.rows // len(states), until)
            known["seconds"] += time.monotonic() - begin
            if options.state is not None:
                options.state.write_text(json.dumps(states))
    print(shown(states))
    wrong = [known["missed"] for known in states.values() if known["missed"]]
    alarms = sum(known["alarms"] for known in states.values())
    done = all(known["rows"] >= options.rows // len(states) for known in states.values())
    print(f"missed: {wrong}" if wrong else "no planted fault was missed")
    print("all rows were audited" if done else "time was up before all rows were audited; run it again with --state")
    return 1 if wrong or alarms else 0


if __name__ == "__main__":
    sys.exit(main())
