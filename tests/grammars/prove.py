"""`make test-grammars`: what ends by a stop token validates, over 500 schemas and more; compile times; malicious input.

Writes docs/structured-output.json, from which `tests.grammars.document` writes the page.
Owns: the run and its figures. Never does: know a backend's calls.
"""

import importlib
import json
import pkgutil
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import openai.types
import pydantic

from tests.grammars.children import in_child
from tests.grammars.documents import schemastore, suite
from tests.grammars.generation import Outcome, attempt, constrained
from tests.grammars.libraries import NAMES, reasons, spec_of
from tests.grammars.malicious import malicious

FIGURES = Path(__file__).parents[2] / "docs" / "structured-output.json"
ANSWERS = 2
SECONDS = 20.0
MEGABYTES = 2_000
OF_OPENAI = 120


def schemas() -> dict[str, list[Any]]:
    """Schemas by their source, each once."""
    sources = {
        "JSON-Schema-Test-Suite": [case.schema for case in suite()],
        "SchemaStore": schemastore(),
        "openai": of_openai()[:OF_OPENAI],
    }
    return {source: list({json.dumps(each): each for each in found}.values()) for source, found in sources.items()}


def of_openai() -> list[Any]:
    """Schemas of the types of the official client, as pydantic writes them: such as people send."""
    found: dict[str, Any] = {}
    for module in pkgutil.walk_packages(openai.types.__path__, "openai.types."):
        for name, value in vars(importlib.import_module(module.name)).items():
            is_model = isinstance(value, type) and issubclass(value, pydantic.BaseModel)
            if is_model and value.__module__ == module.name:
                found[name] = value.model_json_schema()
    return [found[name] for name in sorted(found)]


def measured(names: tuple[str, ...]) -> dict[str, Any]:
    """Figures of one backend, or of several in their order."""
    figures: dict[str, Any] = {}
    seconds: list[float] = []
    for source, found in schemas().items():
        counts: Counter[str] = Counter()
        for number, schema in enumerate(found):
            status, outcome = in_child(lambda: attempt(schema, number, ANSWERS, names), SECONDS, MEGABYTES)  # noqa: B023
            _count(status, outcome, counts)
            if status == "done" and outcome.verdict == "served":
                seconds.append(outcome.seconds)
            for text in outcome.wrong if status == "done" else ():
                print("WRONG", outcome.backend, json.dumps(schema)[:300], text[:200], flush=True)
            if status != "done":
                print(status.upper(), str(outcome)[:200], json.dumps(schema)[:300], flush=True)
        figures[source] = {"schemas": len(found), **counts}
        print("+".join(names), source, figures[source], flush=True)
    ordered = sorted(seconds)
    figures["compile"] = {
        "schemas": len(ordered),
        "median_ms": round(1e3 * statistics.median(ordered), 1),
        "p99_ms": round(1e3 * ordered[int(0.99 * (len(ordered) - 1))], 1),
    }
    return figures


def _count(status: str, outcome: Outcome, counts: Counter[str]) -> None:
    if status != "done":
        counts[status] += 1
        return
    counts[outcome.verdict] += 1
    counts["stopped"] += outcome.stopped
    counts["cut"] += outcome.cut
    counts["wrong"] += len(outcome.wrong)


def judged_malicious() -> dict[str, dict[str, str]]:
    """What becomes of malicious specifications, by name and backend."""
    return {name: {backend: _judged(spec, backend) for backend in NAMES} for name, spec in malicious().items()}


def _judged(spec: Any, backend: str) -> str:
    begin = time.perf_counter()
    found = reasons(backend, spec)
    spent = time.perf_counter() - begin
    if found:
        return f"refused after {spent:.2f} s: {found[0].required}"
    begin = time.perf_counter()
    status, value = in_child(lambda: len(constrained(backend, spec).allowed()), SECONDS, MEGABYTES)
    spent = time.perf_counter() - begin
    return f"compiled in {spent:.2f} s" if status == "done" else f"{status}: {str(value)[:80]}"


def main() -> int:
    prepared = [constrained(name, spec_of({})).allowed() for name in NAMES]
    assert all(len(mask) for mask in prepared)
    figures: dict[str, Any] = {"automatic": measured(NAMES)}
    for name in NAMES:
        figures[name] = measured((name,))
    figures["malicious"] = judged_malicious()
    FIGURES.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    wrong = sum(
        source.get("wrong", 0) + source.get("died", 0)
        for kind in ("automatic", *NAMES)
        for source in figures[kind].values()
    )
    print(json.dumps(figures["malicious"], indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
