"""What the tables say is honoured, is: the libraries refuse every text there that `jsonschema` refuses."""

from typing import Any

import pytest

from core_grammars.honoured import asserting_keywords
from tests.grammars.documents import Case, is_valid, own, suite
from tests.grammars.libraries import NAMES, Accepts, Refused, acceptor, reasons, spec_of, table

CONTENT = "content"
"""Media types of strings, which the drafts call annotations."""


def compiled(name: str, schema: Any) -> Accepts | None:
    """The plugin's own judge of texts, None when it refuses the schema."""
    pytest.importorskip(name)
    spec = spec_of(schema)
    if reasons(name, spec):
        return None
    try:
        return acceptor(name, spec)
    except Refused:
        return None


def let_through(cases: list[Case], name: str) -> tuple[list[str], int]:
    """What is let through although it is invalid, and how many schemas were honoured."""
    holes = []
    honoured = 0
    for case in cases:
        accepts = compiled(name, case.schema)
        if accepts is None:
            continue
        honoured += 1
        holes.extend(f"{case.name}: {text}" for text in case.invalid if accepts(text))
    return holes, honoured


@pytest.mark.parametrize("name", NAMES)
def test_no_case_of_the_suite_is_let_through(name: str) -> None:
    cases = [case for case in suite() if CONTENT not in case.name]
    holes, honoured = let_through(cases, name)
    assert not holes
    assert honoured >= {"xgrammar": 60, "llguidance": 150}[name]


@pytest.mark.parametrize("name", NAMES)
def test_no_case_of_ours_is_let_through(name: str) -> None:
    holes, honoured = let_through(own(), name)
    assert not holes
    assert honoured >= {"xgrammar": 6, "llguidance": 15}[name]


def test_our_cases_are_what_jsonschema_says() -> None:
    for case in own():
        assert all(is_valid(case.schema, text) for text in case.valid), case.schema
        assert not any(is_valid(case.schema, text) for text in case.invalid), case.schema


def test_common_schemas_are_honoured_by_one_backend_and_their_documents_taken() -> None:
    for case in own():
        judges = [judge for name in NAMES if (judge := compiled(name, case.schema))]
        assert bool(judges) == case.is_honoured, case.schema
        if not judges:
            continue
        for text in case.valid:
            assert any(accepts(text) for accepts in judges), (case.schema, text)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_a_keyword_and_every_keyword_that_is_spoken_of_has_a_row(name: str) -> None:
    old = {"extends", "disallow", "divisibleBy"}
    assert set(table(name).rows) == set(asserting_keywords()) - old
