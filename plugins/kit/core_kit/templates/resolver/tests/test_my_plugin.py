"""The kit's conformance suite, and a folder that is found."""

from pathlib import Path

import pytest
from core_my_plugin.resolver import Resolver

from core_kit import cases


@pytest.mark.parametrize("case", cases("resolver", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_a_folder_is_found_by_team_and_name(tmp_path: Path):
    (tmp_path / "sales" / "sql").mkdir(parents=True)
    assert Resolver(str(tmp_path)).find("sales/sql") == str(tmp_path / "sales" / "sql")
    assert Resolver(str(tmp_path)).find("sales/fr") is None
