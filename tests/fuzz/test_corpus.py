"""Every damaged file that ever broke a reader is read or refused with a sentence."""

from pathlib import Path

import pytest

from tests.fuzz.run import CORPUS
from tests.fuzz.targets import TARGETS
from tests.fuzz.worker import try_case

KEPT = sorted(CORPUS.glob("*/*"))


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_damaged_files_are_refused(kept: Path, tmp_path: Path) -> None:
    target = TARGETS[kept.parent.name]
    _, _, file = kept.name.partition("-")
    target.make(tmp_path)
    (tmp_path / file).write_bytes(kept.read_bytes())
    assert try_case(target, tmp_path) == ""
