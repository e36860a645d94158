"""The page about memory is what its table makes; what it says to save memory does, and what it names exists."""

import re

import pytest

from core.args.schema import schema
from tests.docs.guides import FLAG
from tests.docs.memory import PAGE, gigabytes, page, table


def test_the_page_is_that_of_its_table():
    assert PAGE.read_text() == page(), "python -m tests.docs.memory writes it"


@pytest.mark.parametrize("group", [g for g in table()["save"] if not g["part"].startswith("Windows")])
def test_each_row_takes_less_than_the_one_before(group):
    sizes = [gigabytes(group, row["arguments"]) for row in group["rows"]]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes)


def test_every_argument_and_page_exists():
    text = PAGE.read_text()
    for flag in FLAG.findall(text):
        if flag.partition("=")[0] not in ("--goal", "--minutes", "--sla", "--pareto"):
            assert schema().named(flag.removeprefix("--").partition(".")[0]), flag
    for name in re.findall(r"\]\(([a-z-]+\.md)\)", text):
        assert (PAGE.parent / name).exists(), name
