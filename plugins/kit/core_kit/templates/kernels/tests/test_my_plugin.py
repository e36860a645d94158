"""The kit's conformance suite: every operation that is claimed, against the reference operations."""

import pytest

from core_kit import cases


@pytest.mark.parametrize("case", cases("kernels", "my_plugin"), ids=str)
def test_conformance(case):
    case()
