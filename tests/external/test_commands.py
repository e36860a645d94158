"""A separate package brings a command of `core`: it is listed without being imported, run when it is typed, and checked."""

import json

import pytest

pytestmark = pytest.mark.slow


def test_a_command_of_another_package_is_run_by_its_name(core):
    done = core("hello", "Ada")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello, Ada.\n", "")
    mistake = core("hello")
    assert mistake.returncode == 2 and "required: name" in mistake.stderr


def test_help_names_its_package_and_does_not_import_it(core):
    done = core("--help", PYTHONVERBOSE="1")
    assert done.returncode == 0
    own, _, others = done.stdout.partition("Commands of other packages:")
    assert "  serve [MODEL]" in own and "hello" not in own
    assert "  hello" in others and "From core-greeting 0.3.0: core hello --help." in others
    assert "core_greeting" not in done.stderr


def test_it_is_a_plugin_that_can_be_listed_and_checked(core):
    rows = json.loads(core("plugins", "list", "--json", "--kind=command").stdout)
    (row,) = [row for row in rows if row["name"] == "hello"]
    assert (row["distribution"], row["status"], row["reason"]) == ("core-greeting", "available", "")
    assert all(row["status"] == "available" for row in rows)
    done = core("plugins", "check", "command.hello", "--json")
    assert done.returncode == 0, done.stdout
    passed = {finding["check"] for finding in json.loads(done.stdout)[0]["findings"] if finding["verdict"] == "passed"}
    assert "`--help` prints something on standard output and returns 0" in passed
