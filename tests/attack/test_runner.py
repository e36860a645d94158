"""The attack's runner sees what it is there to see, and its report says it."""

import io
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer, run_server
from tests.attack import canary, phase_rows, run
from tests.attack.arena import Arena
from tests.attack.corpus import THEMES
from tests.attack.leaving import leave_in_body, leave_in_stream
from tests.attack.phase_connections import leave
from tests.attack.picture import histogram
from tests.attack.probe import measure
from tests.attack.report import write
from tests.attack.results import Phase
from tests.attack.row import KEY
from tests.attack.send import Target

BLOCKED_S = 0.6


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server(ServerConfig(api_keys=(KEY,), uvicorn_log_level="critical")) as running:
        yield running


@pytest.fixture
def target(server: RunningServer) -> Target:
    return run.target_of(server.url, KEY)


def made_up() -> list[Phase]:
    good, bad = Phase("good", "What held"), Phase("bad", "What did not")
    good.check("a <b>bold</b> name", True, 200, "200 | 400")
    bad.at_most("the longest wait", 2.5, 0.1)
    bad.series["waits"], bad.limits["waits"] = [0.001] * 50 + [2.5], 0.1
    bad.notes.append("A note & more")
    return [good, bad]


class Tags(HTMLParser):
    """All opened tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.classes: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.classes += [value or "" for name, value in attrs if name == "class"]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_says_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    write(path, made_up(), seed=7, seconds=60)
    text, page = path.read_text(), path.with_suffix(".html").read_text()
    assert "1 of 2 checks failed." in text and "seed 7" in text
    assert "| **failed** | the longest wait | 2.5 s | at most 0.1 s |" in text
    assert "200 \\| 400" in text
    tags = Tags(page)
    assert tags.open == []
    assert "a &lt;b&gt;bold&lt;/b&gt; name" in page and "A note &amp; more" in page
    assert tags.classes.count("over") == 1 and "limit" in tags.classes
    assert "http://" not in page and "https://" not in page, "the page needs nothing from outside"


def test_a_picture_of_nothing_is_one() -> None:
    assert "0 measured" in histogram("nothing", [], None)


def test_a_blocked_server_is_measured(server: RunningServer, target: Target) -> None:
    blocking = threading.Timer(0.3, server.loop.call_soon_threadsafe, (time.sleep, BLOCKED_S))
    blocking.start()
    measured = measure(target, 0.3 + BLOCKED_S, tokens=50, prompt="SLOW")
    blocking.join()
    assert max(measured.health) > BLOCKED_S / 2
    assert max(measured.gaps) > BLOCKED_S / 2
    assert min(measured.health) < BLOCKED_S / 2
    assert measured.failures == 0


def test_clients_that_leave_are_counted(target: Target) -> None:
    phase = Phase("connections", "")
    assert leave(phase, target, "in the middle of a body", 5, 5.0, leave_in_body) == 5
    assert leave(phase, target, "in the middle of a stream", 5, 5.0, leave_in_stream) == 5
    assert phase.failed == [] and len(phase.checks) == 2


def test_a_dead_server_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.md"
    monkeypatch.setattr(phase_rows, "THEMES", {"keys": THEMES["keys"][:3]})
    monkeypatch.setattr(canary, "QUIET_S", 0.2)
    with run_server() as running:
        url = running.url
    assert run.main(["--only", "rows", "--minutes", "0.005", "--url", url, "--report", str(report)]) == 1
    assert "checks failed" in report.read_text()


@pytest.mark.slow
def test_a_sound_server_passes(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.md"
    monkeypatch.setattr(phase_rows, "THEMES", {"keys": [row for row in THEMES["keys"] if "a key with" in row.name]})
    assert run.main(["--only", "rows", "--minutes", "0.2", "--url", server.url, "--report", str(report)]) == 0
    assert "checks held." in report.read_text()


@pytest.mark.parametrize("url", ["http://example.org:80", "http://10.0.0.1:8000", "127.0.0.1", "http://127.0.0.1"])
def test_other_machines_are_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.main(["--url", url])
    assert "127.0.0.1" in capsys.readouterr().err


def test_a_phase_that_breaks_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(arena: Arena, phase: Phase, seconds: float) -> None:
        phase.check("a check before", True)
        raise OSError("no such thing")

    monkeypatch.setitem(run.PHASES, "load", ("Load", broken, 1.0, True))
    out = io.StringIO()
    (phase,) = run.attack(Arena(tmp_path, out=out), ["load"], 1.0)
    assert [check.value for check in phase.failed] == ["OSError: no such thing"]
    assert len(phase.checks) == 2, "what was found before is kept"
    assert "FAILED the phase itself" in out.getvalue() and "Traceback" in capsys.readouterr().err
