"""`python -m benchmarks.lease STAGE`: run the measurements of a stage, each under a limit of seconds.

Owns: the process that measures, its limits, the lines and the table. Never does: measure (`benchmarks.lease.child` does).

A measurement that fails, hangs or breaks its process costs itself only: the process is ended, and another one goes on with the
next. Every row is written to `$OUT/stage-N.jsonl` as it comes; the table is printed last.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.lease.rows import Row, table

STAGES = ("1", "2", "3", "4", "5")
START_S = 60.0
"""Seconds that a process may take to import torch and to open the device, beyond the limit of its first measurement."""


class Stage:
    """The rows of a stage, and the process that measures at the moment."""

    def __init__(self, given: argparse.Namespace, out: Path) -> None:
        self.given = given
        self.rows: list[Row] = []
        self.waiting = list(given.only) or names_of(given)
        self._until = time.monotonic() + given.seconds
        self._file = out / f"stage-{given.stage}.jsonl"
        self._file.write_text("")

    def run(self) -> None:
        """Measure everything, one process after another until nothing waits."""
        while self.waiting:
            left = self._until - time.monotonic()
            if left <= 0:
                for name in self.waiting:
                    self.add(Row(name, "not begun: no time was left"))
                return
            self._run_process(left)

    def add(self, row: Row) -> None:
        """Write down a row."""
        self.rows.append(row)
        print(f"{row.name}: {row.what} {'' if row.value is None else f'{row.value:.4g} {row.unit}'}", file=sys.stderr)
        with self._file.open("a") as file:
            file.write(json.dumps(row._asdict()) + "\n")

    def _run_process(self, left: float) -> None:
        """Measure what waits, in order, until all is done or the process is lost."""
        command = [sys.executable, "-m", "benchmarks.lease.child", self.given.stage, self.given.device]
        command += ["tiny" if self.given.tiny else "full", *self.waiting]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        watch = Watch(process, min(left, START_S + self.given.limit))
        at_work = self.waiting[0]
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line) if line.startswith("{") else {}
            if "begin" in told:
                at_work = told["begin"]
                watch.allow(min(told["limit"], max(self._until - time.monotonic(), 1.0)))
            elif "end" in told:
                self.waiting.remove(told["end"])
                watch.allow(START_S)
            elif "row" in told:
                self.add(Row(**told["row"]))
        code = process.wait()
        watch.stop()
        if at_work in self.waiting:
            reason = f"not done after {watch.seconds:.0f} s" if watch.ended else f"its process ended with {code}"
            self.add(Row(at_work, reason))
            self.waiting.remove(at_work)
        elif code and self.waiting:
            self.add(Row(self.waiting[0], f"the process ended with {code} before it"))
            self.waiting.pop(0)


class Watch:
    """Ends a process, with all that it has started, when it is silent for too long. seconds: that it may be."""

    def __init__(self, process: subprocess.Popen[str], seconds: float) -> None:
        self.ended = False
        self.seconds = seconds
        self._process = process
        self._timer: threading.Timer | None = None
        self.allow(seconds)

    def allow(self, seconds: float) -> None:
        """Give it so many seconds from now."""
        self.stop()
        self.seconds = seconds
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self.ended = True
        os.killpg(self._process.pid, signal.SIGKILL)


def names_of(given: argparse.Namespace) -> list[str]:
    """The measurements of the stage; the list comes from a process, since this one never imports torch."""
    command = [sys.executable, "-m", "benchmarks.lease.child", given.stage, given.device, "names"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: list[str] = json.loads(said.splitlines()[-1])
    return found


def main() -> int:
    """Run a stage; the exit code is 1 when a measurement failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a rehearsal")
    parser.add_argument("--tiny", action="store_true", help="small shapes and few rounds: a rehearsal")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some of the stage's measurements")
    parser.add_argument("--seconds", type=float, default=540, help="of the whole stage")
    parser.add_argument("--limit", type=float, default=120, help="seconds of a process's first measurement")
    given = parser.parse_args()
    out = Path(os.environ.get("OUT") or "build/lease/out")
    out.mkdir(parents=True, exist_ok=True)
    if given.device == "cpu" and given.stage != "4":  # which compiles, for a chip that is not there
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    stage = Stage(given, out)
    stage.run()
    (out / f"stage-{given.stage}.md").write_text(table(stage.rows))
    print(table(stage.rows))
    return int(any(row.failed for row in stage.rows))


if __name__ == "__main__":
    sys.exit(main())
