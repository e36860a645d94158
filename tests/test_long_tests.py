"""The table of tests that `make test` leaves to `make test-long` names tests that exist, and leaves out what it says."""

import re
from types import SimpleNamespace

import pytest

from tests.long_tests import TABLE, every_of_functions, mark_long, rows_for

ROOT = TABLE.parent.parent


def test_every_row_names_a_test():
    texts = {name.split("::")[0]: (ROOT / name.split("::")[0]).read_text() for name in every_of_functions()}
    missing = []
    for name in every_of_functions():
        file, *parts = name.split("::")
        if parts and not re.search(rf"\b{re.escape(parts[0])}\b", texts[file]):
            missing.append(name)
    assert not missing, "rows of tests/long.toml whose test is gone or has another name"


def marked(names, rows, marks=()):
    left_out = []
    items = [
        SimpleNamespace(
            nodeid=name,
            iter_markers=lambda: [SimpleNamespace(name=mark) for mark in marks],
            add_marker=lambda mark, name=name: left_out.append((name, mark)),
        )
        for name in names
    ]
    mark_long(items, rows, {"slow"})
    return [name for name, _ in left_out]


@pytest.mark.parametrize(
    ("rows", "left_out"),
    [
        ({}, []),
        ({"tests/a.py::test_x": 0}, ["tests/a.py::test_x[0]", "tests/a.py::test_x[1]", "tests/a.py::test_x[2]"]),
        ({"tests/a.py::test_x": 2}, ["tests/a.py::test_x[1]"]),
        ({"tests/a.py": 0, "tests/a.py::test_x": 1}, ["tests/a.py::test_y"]),
        ({"tests/b.py": 0}, []),
    ],
)
def test_what_is_left_out(rows, left_out):
    names = [*(f"tests/a.py::test_x[{i}]" for i in range(3)), "tests/a.py::test_y"]
    assert marked(names, rows) == left_out
    assert not marked(names, rows, marks=["slow"])  # has a target of its own


def test_what_takes_long_is_every_nth_case_or_none():
    seconds = {"quick": [0.1] * 10, "grid": [0.5] * 20, "one": [9.0], "few": [4.0, 4.0]}
    assert rows_for(seconds) == {"grid": 11, "one": 0, "few": 0}
