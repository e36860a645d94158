"""vLLM's own offline examples, with the import changed: `python -m tests.compat.examples FOLDER`.

Owns: running each script of a folder, and the table of what became of them. Never does: bring the scripts, which stay where
they are, or change more of them than `tests.compat.rewriting` says.
Called by: `make test-vllm-examples EXAMPLES=FOLDER`, which is for people: no test runs it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.compat.rewriting import rewritten, uses_vllm
from tests.compat.stand_ins import StandIns, arguments_of
from tests.compat.verdict import Verdict, judge

ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class Tried:
    """name: of the script, under its folder. verdict: what became of it. seconds: it took."""

    name: str
    verdict: Verdict
    seconds: float


def main(words: Sequence[str] | None = None) -> int:
    """Run them all; returns the exit code: 1 when one failed."""
    parser = argparse.ArgumentParser(description="Run vLLM's offline examples with the import changed.")
    parser.add_argument("folder", type=Path, help="a folder of vLLM's examples")
    parser.add_argument("--model", help="checkpoint in the place of every model; unset: a tiny random one of its kind")
    parser.add_argument("--only", default="", help="part of the paths of the scripts to run, such as offline")
    parser.add_argument("--report", type=Path, help="file for the table, beside standard output")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as place:
        stand_ins = StandIns(Path(place) / "models")
        instead = stand_ins.path if args.model is None else lambda _: str(args.model)
        tried = [run(script, args.folder, instead, Path(place)) for script in scripts(args.folder, args.only)]
    table = report(tried)
    print(table, end="")
    if args.report is not None:
        args.report.write_text(table, encoding="utf-8")
    return 1 if any(one.verdict.outcome == "failed" for one in tried) else 0


def scripts(folder: Path, part: str = "") -> list[Path]:
    """Those that import vLLM, in order."""
    found: list[Path] = []
    for path in sorted(folder.rglob("*.py")):
        if part in str(path.relative_to(folder)) and uses_vllm(path.read_text(encoding="utf-8")):
            found.append(path)
    return found


def run(script: Path, folder: Path, instead: Callable[[str], str], place: Path) -> Tried:
    """Run one script in a process of its own, in a copy of its folder. instead: the checkpoint in the place of a hub name."""
    name = str(script.relative_to(folder))
    where = Path(tempfile.mkdtemp(dir=place)) / "beside"
    shutil.copytree(script.parent, where)  # templates and the like
    copy = where / script.name
    source = script.read_text(encoding="utf-8")
    copy.write_text(rewritten(source, instead), encoding="utf-8")
    begin = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            [sys.executable, str(copy), *arguments_of(script.name, instead)],
            cwd=where,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
        verdict = judge(done.returncode, done.stderr)
    except subprocess.TimeoutExpired:
        verdict = Verdict("failed", "", f"it ran longer than {TIME_LIMIT_S} s")
    tried = Tried(name, verdict, time.monotonic() - begin)
    print(f"{name}: {verdict.outcome} {verdict.topic} ({tried.seconds:.0f} s)", file=sys.stderr, flush=True)
    return tried


def report(tried: Sequence[Tried]) -> str:
    """Counts, then a row a script."""
    outcomes = Counter(one.verdict.outcome for one in tried)
    counts = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in ("ran", "refused", "needs", "failed"))
    topics = Counter((one.verdict.outcome, one.verdict.topic) for one in tried if one.verdict.topic)
    lines = [f"{len(tried)} scripts: {counts}.", ""]
    lines += [f"- {outcome}: {topic}: {count}" for (outcome, topic), count in sorted(topics.items())]
    lines += ["", "| script | what became of it | the last line |", "|---|---|---|"]
    for one in tried:
        verdict = one.verdict
        told = f"{verdict.outcome}: {verdict.topic}" if verdict.topic else verdict.outcome
        line = verdict.line.replace("|", "\\|")
        lines.append(f"| {one.name} | {told} ({one.seconds:.0f} s) | {line} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
