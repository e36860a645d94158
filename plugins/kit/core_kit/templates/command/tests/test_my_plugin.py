"""The kit's conformance suite, and what the command prints."""

import pytest
from core_my_plugin.command import CountPlugins

from core_kit import cases


@pytest.mark.parametrize("case", cases("command", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_one_kind(capsys):
    assert CountPlugins().run(["--kind=command"]) == 0
    kind, count = capsys.readouterr().out.split(": ")
    assert kind == "command" and int(count) >= 1
