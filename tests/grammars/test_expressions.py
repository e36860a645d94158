"""Regular expressions are read once: their parts, size and anchors."""

import re

import pytest

from core_grammars.dialects import portable
from core_grammars.expressions import MAX_DEPTH, read_expression
from core_grammars.keywords import unhonoured_expression
from tests.grammars.libraries import table


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("(?=a)a", "look-around"),
        ("a(?<!b)", "look-around"),
        (r"(a)\1", "back reference"),
        ("(?P<n>a)(?P=n)", "back reference"),
        (r"\bword", "word boundary"),
        (r"\p{L}", "unicode property"),
        ("a+?", "lazy"),
        ("a++", "possessive"),
        ("(?>a)", "atomic group"),
        ("(?i)a", "flags"),
        ("a$b", "inner anchor"),
        ('"', "quote"),
        ("[ -~]", "quote"),
        (r"[\n]", "control"),
        (r"[^\s]", "not space"),
        ("é", "not ASCII"),
        ("[[:alpha:]]", "named class"),
    ],
)
def test_parts_are_named(text: str, part: str) -> None:
    assert part in read_expression(text).parts


def test_plain_expressions_have_plain_parts_only() -> None:
    parts = read_expression(r"^([a-z0-9_-]{1,20}|[^x])+\d\.(?:a|b)*$").parts
    assert parts == {"class", "negated class", "repetition", "digit", "group"}


@pytest.mark.parametrize("text", ["(", "a)", "[a", "*a", "a{3,2}", "\\", "(" * (MAX_DEPTH + 2) + ")" * (MAX_DEPTH + 2)])
def test_what_is_no_expression_has_a_problem(text: str) -> None:
    assert read_expression(text).problem
    assert unhonoured_expression(text, table("llguidance"))


@pytest.mark.parametrize(
    ("text", "anchored"),
    [("^a$", True), ("^a", False), (r"^a\$", False), ("^a|b$", False), ("^(a|b)$", True), (r"^a\\$", True)],
)
def test_anchors(text: str, anchored: bool) -> None:
    assert read_expression(text).anchored is anchored


def test_counts_multiply() -> None:
    assert read_expression("((a{100}){100}){100}").size == 100**3
    assert read_expression("(a{2}b){3}").size == 9
    assert unhonoured_expression("((a{1,1000}){1,1000}){1,1000}", table("llguidance"))


def test_a_long_expression_is_read_in_linear_time() -> None:
    assert not read_expression("(a+)+" * 20_000).problem


@pytest.mark.parametrize("text", [r"\d[\w\]]\S", r"a\\d[^\[\s]", "[]a]b", r"[\s\S]*"])
def test_portable_classes_leave_the_rest_alone(text: str) -> None:
    plain = portable(text).replace("\ufeff", "").replace(r"[^\s]", r"\S")
    assert plain == text
    re.compile(plain)
