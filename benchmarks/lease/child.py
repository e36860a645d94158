"""`python -m benchmarks.lease.child STAGE DEVICE tiny|full|names [NAME...]`: measure, and say so in lines of JSON.

Owns: the order of one process's measurements. Never does: watch its own time. Called by: `benchmarks.lease`.

Lines: {"begin": name, "limit": seconds}, {"row": {...}}, {"end": name}. What else is printed goes to the standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any, TextIO

from benchmarks.lease.place import Measurement, Place
from benchmarks.lease.rows import Row


def main() -> int:
    """Measure what is named; the exit code is 3 when an error has broken the device for this process."""
    stage, device, size, *names = sys.argv[1:]
    measurements: tuple[Measurement, ...] = importlib.import_module(f"benchmarks.lease.stage{stage}").MEASUREMENTS
    if size == "names":
        print(json.dumps([one.name for one in measurements]))
        return 0
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    place = Place(device, tiny=size == "tiny")
    known = {one.name: one for one in measurements}
    for name in names:
        say(answers, begin=name, limit=known[name].limit)
        try:
            for row in known[name].run(place):
                say(answers, row=row._replace(name=name)._asdict())
        except Exception as error:  # whatever went wrong is a row; the others are still measured
            traceback.print_exc()
            words = str(error).strip().splitlines() or [""]
            say(answers, row=Row(name, f"{type(error).__name__}: {words[0][:300]}")._asdict())
        say(answers, end=name)
        if not place.is_sound():
            return 3
    return 0


def say(answers: TextIO, **what: Any) -> None:
    """Write a line."""
    answers.write(json.dumps(what) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
