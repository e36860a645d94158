"""Requests that schemathesis makes from the OpenAPI document as it is served, and answers that the document does not know."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.attack.arena import Arena
from tests.attack.results import Phase
from tests.attack.send import Target

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
UNSOUND = ("unresolvable_reference", "unsupported_regex", "missing_deserializer")
"""Warnings of schemathesis that are defects of the document; others say how well its requests were understood."""
REQUEST_LIMIT_S = 20
CONTEXT = 256
"""Short, because a request without a limit fills it."""
STARTING_S = 60.0


def run(arena: Arena, phase: Phase, seconds: float) -> None:
    """One run of its command line, as long as the time allows."""
    if importlib.util.find_spec("schemathesis") is None:
        phase.check("schemathesis", False, "not installed", "installed", "pip install -e '.[test]'")
        return
    with arena.target(max_model_len=CONTEXT) as (target, server):
        report = arena.home / "schemathesis.json"
        out = attack(target, report, max(2.0, seconds - 15.0), arena.random.randint(0, 2**31), arena.home)
        if report.exists():
            judge(phase, json.loads(report.read_text()), out)
        else:
            phase.check("schemathesis runs", False, out[-300:], "a report")
        if server is not None:
            phase.check(
                "the server lives", server.process.poll() is None, server.process.poll() or "running", "running"
            )
        arena.check_tokens(phase, target)


def attack(target: Target, report: Path, seconds: float, seed: int, folder: Path) -> str:
    """Run schemathesis; returns what it printed."""
    base = f"http://{target.host}:{target.port}"
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{base}/openapi.json", "--no-color"),
        *("--header", f"Authorization: Bearer {target.key}", "--checks", ",".join(CHECKS)),
        *("--phases", "examples,coverage,fuzzing", "--max-time", str(int(seconds)), "--seed", str(seed)),
        *("--request-timeout", str(REQUEST_LIMIT_S), "--suppress-health-check", "all", "--continue-on-failure"),
        *("--report", "json", "--report-json-path", str(report)),
    ]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds + STARTING_S)
    except subprocess.TimeoutExpired:
        return "it did not end in time"
    return done.stdout + done.stderr


def judge(phase: Phase, found: dict[str, Any], out: str) -> None:
    """One check for each kind of failure, and that enough was tried. out: what was printed."""
    cases, operations = found["test_cases"]["generated"], found["operations"]
    phase.check(
        "every operation is tried",
        operations["tested"] == operations["total"] > 0,
        operations["tested"],
        operations["total"],
    )
    phase.check("requests are made", cases > 100, f"{cases} requests", "more than 100")
    for failure in found["failures"]:
        where = ", ".join(failure["operations"])
        phase.check(failure["title"], False, f"{failure['count']} times", "never", where)
    errors = found["test_cases"]["errored"] + operations["errored"]
    phase.check(
        "no request is without an answer", errors == 0, f"{errors} errors", 0, str(found.get("errors", ""))[:500]
    )
    if errors:  # the report counts them; which request it was is printed alone
        phase.notes.append(out[out.find("ERRORS") :][:2000])
    for kind in UNSOUND:
        operations_named = (found.get("warnings") or {}).get(kind) or []
        named = ", ".join(map(str, operations_named))
        phase.check(f"the document: {kind.replace('_', ' ')}", not operations_named, named[:300] or "none", "none")
