"""What `core plugins new` writes works as written: installed by pip, listed, checked, and its own tests pass."""

from __future__ import annotations

import json

import pytest

from core.testing.skeleton import kinds


def test_they_are_listed_as_available(core):
    rows = {row["name"]: row for row in json.loads(core("plugins", "list", "--json").stdout)}
    for kind in kinds():
        row = rows[f"new_{kind}"]
        assert (row["kind"], row["status"], row["reason"]) == (kind, "available", "")
        assert (row["distribution"], row["version"]) == (f"core-new-{kind}", "0.1.0")


@pytest.mark.slow
def test_their_own_tests_pass(python, generated, site):
    """Each holds the whole conformance suite of its kind, on the installed package."""
    folders = [str(folder / "tests") for folder in generated.values()]
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "-c",
        "/dev/null",
        "--rootdir",
        str(site.parent),
    ]
    done = python("-m", "pytest", *options, *folders, cwd=site.parent)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "failed" not in done.stdout
