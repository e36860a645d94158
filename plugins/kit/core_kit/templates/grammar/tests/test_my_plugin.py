"""The kit's conformance suite."""

import pytest

from core_kit import cases


@pytest.mark.parametrize("case", cases("grammar", "my_plugin"), ids=str)
def test_conformance(case):
    case()
