"""Every documented feature has a test that is there, or a sentence that the engine says; few are missing."""

import msgspec
import pytest

from tests.docs import features
from tests.docs.feature_audit import Asked, Documented, Refusal, documented, faults, numbering

A_TEST = "docs/test_feature_audit.py::test_every_row_has_its_evidence"
REFUSED = Refusal("--num-scheduler-steps 8", "a step is planned once")


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked()


def test_every_row_has_its_evidence(asked: Asked) -> None:
    assert numbering(documented()) == []
    assert [fault for row in documented() for fault in faults(row, asked)] == []


def test_no_feature_is_missing() -> None:
    assert [row.number for row in documented() if row.state == "missing"] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "served"}, "no test shows it"),
        ({"state": "in part", "refusals": [REFUSED], "lacks": "more"}, "no test shows it"),
        ({"state": "served", "tests": ["docs/test_feature_audit.py::test_of_nothing"]}, "there is no such test"),
        ({"state": "served", "tests": ["docs/test_of_nothing.py::test_it"]}, "there is no such test"),
        ({"state": "refused"}, "neither a test nor a sentence"),
        ({"state": "refused", "refusals": [Refusal("--max-num-seqs 8", "a step")]}, "does not say 'a step'"),
        ({"state": "refused", "refusals": [Refusal("NO_SUCH_VARIABLE=1", "reported")]}, "does not say 'reported'"),
        ({"state": "in part", "tests": [A_TEST]}, "`lacks` is ''"),
        ({"state": "missing", "tests": [A_TEST], "lacks": "all"}, "something shows it"),
    ],
)
def test_a_row_without_evidence_is_a_fault(asked: Asked, changes: dict[str, object], words: str) -> None:
    row = msgspec.convert({"number": 1, "name": "a", **msgspec.to_builtins(changes)}, Documented)
    assert any(words in fault for fault in faults(row, asked)), faults(row, asked)


def test_rows_are_numbered_without_a_gap() -> None:
    assert numbering(documented()[1:]) and numbering([*documented(), documented()[0]])


def test_the_command_prints_every_row_and_fails_while_one_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        Documented(number=1, name="one", state="served", tests=[A_TEST]),
        Documented(number=2, name="two", state="refused", refusals=[REFUSED]),
    ]
    for name, value in (("areas", lambda: {"some": rows}), ("NUMBERS", range(1, 3))):
        monkeypatch.setattr(f"tests.docs.feature_audit.{name}", value)
    assert features.main(["--audit"]) == 0
    printed = capsys.readouterr().out
    assert f"shown by tests/{A_TEST}" in printed
    assert "--num-scheduler-steps 8: removed, as a step is planned once; leave it out." in printed
    rows[0] = Documented(number=1, name="one", state="missing", lacks="all of it")
    assert features.main(["--audit"]) == 1
    assert "missing: 1 one" in capsys.readouterr().out
    assert features.main(["--audti"]) == 2
