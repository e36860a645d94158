"""The kit's checks of attention backends on the Triton kernels, in the interpreter: padding, trees, ownership, claims."""

import pytest

from core_kit.case import Skipped
from core_kit.checks import attention as kit
from core_kit.fixtures import attention_cases

pytest.importorskip("triton")
from tests.cuda.interpreted import Interpreted

QUICK = {"writes_only_its_slots", "layout_is_planned"}
SHORT = (7, 1, 19)
FEW = (21, 3, 18)
"""Fewer tokens than elsewhere, beyond a block all the same: the interpreter takes milliseconds for each of them."""
CHECKS = {check.__name__: check for check in kit.KEYED}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.gpu_interpreter) for name in CHECKS]
)
def test_the_kit_is_satisfied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kit, attention_cases):
        monkeypatch.setattr(module, "LENGTHS", SHORT)
    monkeypatch.setattr(kit, "COMPANY", FEW)
    try:
        CHECKS[name](Interpreted())  # type: ignore[arg-type]
    except Skipped as skipped:
        pytest.fail(f"not a check of this backend: {skipped}")
