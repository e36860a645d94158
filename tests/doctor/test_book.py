"""Runs are kept in order and within limits; damaged, foreign and newer files are sentences and end no start."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest

from core import LLM
from core.api.errors import UserError
from core_observers.runs import book as book_module
from core_observers.runs import copies as copies_module
from core_observers.runs.book import RunBook
from core_observers.runs.compare import changes_between, difference, other_differences
from core_observers.runs.quarantine import Culprit, add_culprits, read_culprits
from core_observers.runs.run import Package, Run, Times, digest_of_module


def run(tokens=(1, 2), packages=(), **changes) -> Run:
    fields = {
        "number": 0,
        "first": "t",
        "last": "t",
        "version": "0.1.0",
        "numerics": "n",
        "environment": {"torch": "2"},
        "choices": {"policy": ["fcfs"]},
        "packages": list(packages),
        "tokens": list(tokens),
        "logprobs": ["0x1p-1"] * len(tokens),
        "times": [Times(1.0, 0.1, 0.01)],
    }
    return Run(**{**fields, **changes})


@pytest.fixture
def file_package(tmp_path: Path) -> Package:
    source = tmp_path / "mine.py"
    source.write_text("KIND = 'policy'\n")
    module = f"file:{source}"
    return Package("", "", module, digest_of_module(module), ("policy.mine",))


def test_equal_starts_are_one_run_and_others_get_the_next_number(tmp_path: Path) -> None:
    book = RunBook(tmp_path, "k")
    assert [book.add(run()), book.add(run())] == [None, None]
    before = book.add(run(tokens=(1, 3)))
    assert before is not None and before.number == 1
    assert [(each.number, each.starts, len(each.times)) for each in book.runs()] == [(1, 2, 2), (2, 1, 1)]
    assert book.path.stat().st_mode & 0o777 == 0o600


def test_the_oldest_runs_and_copies_that_none_names_are_dropped(tmp_path: Path, monkeypatch, file_package) -> None:
    monkeypatch.setattr(book_module, "MOST_RUNS", 2)
    book = RunBook(tmp_path / "canary", "k")
    book.add(run(packages=[file_package]))
    copy = book.copies.find(file_package)
    assert copy is not None and copy.read_text() == "KIND = 'policy'\n"
    for token in (5, 6):
        book.add(run(tokens=(token,)))
    assert [each.number for each in book.runs()] == [2, 3]
    assert book.copies.find(file_package) is None


def test_changed_files_of_a_package_are_named(tmp_path: Path, monkeypatch) -> None:
    site = tmp_path / "site"
    folder = site / "core_doctor_sample"
    folder.mkdir(parents=True)
    for name, text in (("__init__.py", ""), ("one.py", "1"), ("two.py", "2")):
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(site))
    package = Package("", "", "core_doctor_sample", digest_of_module("core_doctor_sample"), ("policy.x",))
    book = RunBook(tmp_path / "canary", "k")
    book.add(run(packages=[package]))
    (folder / "one.py").write_text("3")
    (folder / "two.py").unlink()
    (folder / "data.json").write_text("{}")
    assert book.copies.find(package) is not None
    names = [f"core_doctor_sample/{name}" for name in ("data.json", "one.py", "two.py")]
    assert book.copies.changed_files(package) == names
    assert digest_of_module("core_doctor_sample") != package.digest


def test_a_copy_that_changed_is_not_used_and_one_that_others_may_write_is_refused(tmp_path: Path, file_package) -> None:
    book = RunBook(tmp_path / "canary", "k")
    book.add(run(packages=[file_package]))
    copy = book.copies.find(file_package)
    assert copy is not None
    copy.parent.chmod(0o777)
    with pytest.raises(UserError, match="others may write there"):
        book.copies.find(file_package)
    copy.parent.chmod(0o700)
    copy.write_text("KIND = 'other'\n")
    assert book.copies.find(file_package) is None


def test_a_package_beyond_the_limits_is_not_copied(tmp_path: Path, monkeypatch, file_package) -> None:
    monkeypatch.setattr(copies_module, "MAX_BYTES", 3)
    book = RunBook(tmp_path / "canary", "k")
    book.add(run(packages=[file_package]))
    assert book.copies.find(file_package) is None and len(book.runs()) == 1


def test_engines_that_start_at_once_lose_no_run(tmp_path: Path) -> None:
    threads = [threading.Thread(target=RunBook(tmp_path, "k").add, args=(run(tokens=(n,)),)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runs = RunBook(tmp_path, "k").runs()
    assert sorted(each.tokens[0] for each in runs) == list(range(16))
    assert [each.number for each in runs] == list(range(1, 17))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is no record of starts"),
        (b"\xff\xfe", "is no record of starts"),
        (b'{"format": 1, "runs": [{"number": "x"}]}', "is no record of starts"),
        (b'{"format": 1, "runs": [], "more": 1}', "is no record of starts"),
        (b'{"format": 2, "books": []}', "its format is 2, this version reads 1"),
        (b"[" * 100_000, "is no record of starts"),
    ],
)
def test_a_damaged_or_newer_book_is_a_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    book = RunBook(tmp_path, "k")
    book.path.parent.mkdir()
    book.path.write_bytes(content)
    for action in (book.runs, lambda: book.add(run())):
        with pytest.raises(UserError, match=words) as error:
            action()
        assert "Remove it" in str(error.value)
    assert book.path.read_bytes() == content


def test_a_huge_book_is_not_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(book_module, "MAX_BOOK", 100)
    book = RunBook(tmp_path, "k")
    book.add(run())
    with pytest.raises(UserError, match="which no record of starts has"):
        book.runs()


def test_a_history_that_cannot_be_kept_costs_a_warning_and_no_start(
    tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def start() -> None:
        LLM(str(tiny_llama), max_model_len=64, max_num_seqs=1, state_canary=str(tmp_path)).close()

    start()
    [path] = (tmp_path / "runs").glob("*.json")
    [first] = json.loads(path.read_text())["runs"]
    assert len(first["tokens"]) == 7 and first["times"][0]["step"] > 0 and first["times"][0]["load"] > 0
    assert {"loader", "platform", "executor", "policy"} <= first["choices"].keys()
    assert any(package["module"] == "core_runtime" for package in first["packages"])
    path.write_text("{")
    with caplog.at_level(logging.WARNING):
        start()
    assert "this start is not kept for `core plugins doctor`" in caplog.text and "Remove it" in caplog.text


def test_differences_of_results_are_told_with_their_size() -> None:
    assert difference(run(), run()) is None
    assert str(difference(run(), run(tokens=(1, 9)))) == "token 2 of the probe's 2 is 9, was 2"
    found = difference(run(), run(logprobs=["0x1p-1", "0x1.8p-1"]))
    assert found is not None and found.what == "bits" and "the first at token 2, by up to 0.25" in found.sentence
    assert "sign of zero" in str(difference(run(logprobs=["0x0p+0"]), run(logprobs=["-0x0p+0"])))
    assert "vector" in str(difference(run(tokens=(), logprobs=["zz"]), run(tokens=(), logprobs=["zy"])))


def test_changes_are_by_module_and_say_what_happened() -> None:
    old = [Package("a", "1", "a", "x", ()), Package("b", "1", "b", "x", ()), Package("c", "1", "c", "x", ())]
    new = [Package("a", "1", "a", "y", ()), Package("b", "2", "b", "y", ()), Package("d", "1", "d", "x", ())]
    assert [change.label for change in changes_between(old, new)] == [
        "a 1 (other code, same version)",
        "b 2 (before: 1)",
        "c 1 (no longer in use)",
        "d 1 (not in use before)",
    ]
    assert other_differences(run(), run(environment={"torch": "3"}, choices={"policy": ["mine"]})) == [
        "torch 3 (before: 2)",
        "policy mine (before: fcfs)",
    ]


def test_the_quarantine_keeps_one_finding_for_each_code_and_refuses_what_is_not_its_own(tmp_path: Path) -> None:
    package = Package("a", "1", "a", "x", ("attention.a",))
    add_culprits(tmp_path, [Culprit(package, "first")])
    add_culprits(tmp_path, [Culprit(package, "second"), Culprit(Package("a", "2", "a", "y", ()), "third")])
    assert [culprit.why for culprit in read_culprits(tmp_path)] == ["second", "third"]
    path = tmp_path / "quarantine.json"
    assert path.stat().st_mode & 0o777 == 0o600
    for content, words in ((b"[]", "is no list of plugins"), (b'{"format": 9}', "its format is 9")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=words):
            read_culprits(tmp_path)
