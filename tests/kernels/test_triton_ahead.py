"""Kernels compiled ahead are found by launches, for a chip that is not in this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.api.errors import UserError
from core_plugins.kernels.triton import ahead

pytest.importorskip("triton")

SCRIPT = """
import json
from core_plugins.kernels.triton import ahead
from core_plugins.kernels.triton.catalog import function_of, kernel_rows

row = next(row for row in kernel_rows() if row.function.endswith("elementwise:add"))
chip = ahead.target_of("sm_90")
told = [ahead.compile_row(chip, row.name)]
function_of(row).device_caches.clear()  # as another process finds it
told.append(ahead.compile_row(chip, row.name))
told.append(ahead.compile_row(ahead.target_of("sm_89"), row.name))
print(json.dumps([[one.name == row.name, one.chip, one.was_there, one.error] for one in told]))
"""


def test_what_was_compiled_is_there(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        [True, "sm_90", False, ""],
        [True, "sm_90", True, ""],
        [True, "sm_89", False, ""],
    ]
    assert list(tmp_path.rglob("*.cubin"))


def test_chips_by_name() -> None:
    assert (ahead.target_of("sm_103").arch, ahead.target_of("90").name) == (103, "sm_90")
    assert (ahead.target_of("gfx942").backend, ahead.target_of("gfx942").warp) == ("hip", 64)
    assert ahead.target_of("sm_89").shared == ahead.target_of("sm_120").shared
    for name in ("sm_75", "gfx803", "hopper", ""):
        with pytest.raises(UserError, match="expected one such as sm_80"):
            ahead.target_of(name)
