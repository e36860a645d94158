"""Malicious specifications against a real server: each is answered in time, and streams beside them never stall."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from core.api.structured_outputs import GrammarSpec
from tests.attack.make import completion
from tests.attack.probe import probing
from tests.attack.row import Answer, Row
from tests.attack.send import send
from tests.attack.server import Server, running
from tests.grammars.malicious import malicious

pytestmark = pytest.mark.slow

SCRIPTED = Path(__file__).with_name("scripted_backend.py")
COMPILE_S = 4.0
ANSWER_S = 200.0
STALL_S = 2.0
"""Less than a compilation may take, and much more than a step does on a busy machine."""
HONOURED = {
    "llguidance": {
        "nested quantifiers",
        "optional parts",
        "1,000 objects",
        "doubling references",
        "a million items",
        "a billion items",
        "a billion characters",
        "100 levels",
        "an expression of nested quantifiers",
    },
    "xgrammar": {
        "doubling references",
        "a million items",
        "a billion items",
        "100 levels",
        "an expression of nested quantifiers",
    },
}
"""The specifications that a backend honours all the same, where the machine is quick enough."""
FIELDS = {"json_schema": "json", "regex": "regex", "ebnf": "grammar", "choice": "choice"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options: dict[str, Any] = {
        "plugins": str(SCRIPTED),
        "structured_outputs_config.compile_timeout": COMPILE_S,
        "structured_outputs_config.compile_memory": "512M",
    }
    with running(tmp_path_factory.mktemp("malicious"), **options) as found:
        yield found


def asked(spec: GrammarSpec, backend: str) -> bytes:
    text: Any = json.loads(spec.text) if spec.kind == "choice" else spec.text
    form = {FIELDS[spec.kind]: text, "backend": backend, "disable_fallback": True}
    return completion(prompt="a", max_tokens=2, structured_outputs=form)


def answer(server: Server, spec: GrammarSpec, backend: str) -> Answer:
    found = send(server.target, Row("spec", "/v1/completions", asked(spec, backend)), ANSWER_S)
    is_ended = b"The grammar backend" in found.body  # a matcher that met its limit ends its own request
    assert found.status in (200, 400) or is_ended, f"{found.outcome}: {found.body[:300]!r}"
    return found


def helpers(server: Server) -> set[int]:
    """Processes that compile."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    return {child.pid for child in children if "core_grammars.compile_process" in child.cmdline()}


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_each_is_answered_beside_a_stream(server: Server, backend: str) -> None:
    answer(server, GrammarSpec("regex", "a"), backend)  # loads the backend
    with probing(server.target) as measured:
        found = {name: answer(server, spec, backend) for name, spec in malicious().items()}
    assert {name for name, one in found.items() if one.status != 400} <= HONOURED[backend]
    for name, one in found.items():
        assert one.status != 400 or one.seconds < 2 * COMPILE_S, name
        assert one.status != 400 or json.loads(one.body)["error"]["param"] == "structured_outputs", name
    assert not measured.failures
    assert measured.gaps and max(measured.gaps) < STALL_S


def test_helpers_that_hang_crash_or_grow_are_replaced_beside_a_stream(server: Server) -> None:
    before: set[int] = set()
    with probing(server.target) as measured:
        for words in (("hang 1", "hang 2"), ("crash 1", "crash 2"), ("memory 1", "memory 2")):
            with ThreadPoolExecutor() as pool:  # both helpers at once
                specs = [GrammarSpec("regex", word) for word in words]
                found = list(pool.map(lambda spec: answer(server, spec, "scripted"), specs))
            assert [one.status for one in found] == [400, 400]
            assert all("--structured-outputs-config.compile" in one.body.decode() for one in found)
            after = helpers(server)
            assert words[0].startswith("memory") or not before & after
            answer(server, GrammarSpec("regex", f"good {words}"), "scripted")
            before = helpers(server)
    assert not measured.failures
    assert measured.gaps and max(measured.gaps) < STALL_S
    assert answer(server, GrammarSpec("regex", "[ab]+"), "llguidance").status == 200
