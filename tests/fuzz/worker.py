"""One process that reads damaged files until it is told to stop, or dies.

Owns: one case at a time, and the limits of memory and time. Never does: go on after a finding of the hard kind.
Called by: the run, with the target, a seed and seconds: `python -m tests.fuzz.worker TARGET SEED SECONDS FOLDER`.

Before a case, its damaged file is written to `FOLDER/case`, so that it is there whatever happens; findings go to standard
output, one JSON object a line.
"""

import json
import logging
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz.mutate import damaged
from tests.fuzz.targets import TARGETS, Target

MEMORY_BYTES = 6 << 30
CASE_SECONDS = 20


class TooLong(BaseException):
    """A case took too long; no reader may catch it."""


def main() -> None:
    """Read cases."""
    name, seed, seconds, folder = sys.argv[1:]
    target = TARGETS[name]
    logging.disable()  # a reader may say what it refuses, thousands of times
    good = Path(folder) / "good"
    good.mkdir(parents=True)
    target.make(good)
    dice = random.Random(f"{name}/{seed}")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _ring)
    end = time.monotonic() + float(seconds)
    count = 0
    while time.monotonic() < end:
        count += 1
        _one(target, good, Path(folder), dice)
    print(json.dumps({"target": name, "cases": count}), flush=True)


def _one(target: Target, good: Path, folder: Path, dice: random.Random) -> None:
    file = dice.choice(target.damaged)
    data = damaged((good / file).read_bytes(), dice)
    case = folder / "case"
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(good, case)
    (case / file).write_bytes(data)
    told = try_case(target, case)
    if told:
        print(json.dumps({"file": file, "data": data.hex(), "told": told}), flush=True)


def try_case(target: Target, case: Path) -> str:
    """What is wrong with how a reader takes a folder; empty when it is read, or refused with a sentence."""
    from core.api.errors import CoreError

    signal.alarm(CASE_SECONDS)
    try:
        target.read(case)
    except CoreError as error:
        return "" if len(str(error)) < 4000 else f"the sentence has {len(str(error))} characters"
    except TooLong:
        return f"it took more than {CASE_SECONDS} s"
    except BaseException:
        return traceback.format_exc(limit=-6)
    finally:
        signal.alarm(0)
    return ""


def _ring(*_: object) -> None:
    raise TooLong


if __name__ == "__main__":
    main()
