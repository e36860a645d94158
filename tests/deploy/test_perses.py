"""Perses' own schemas read the dashboard and know each of its keys and units: `make test-deploy`, which installs them."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from core_observers.perses import perses_dashboard
from tests.layout import ROOT

SCHEMAS = ROOT / ".venv" / "perses"
SCRIPT = Path(__file__).with_name("perses.cjs")

pytestmark = pytest.mark.slow


def unknown(board: dict[str, Any]) -> list[str]:
    """What of a dashboard Perses does not know."""
    if shutil.which("node") is None or not (SCHEMAS / "node_modules" / "@perses-dev" / "core").exists():
        pytest.skip("needs Node.js and Perses' schemas, which `make test-deploy` installs")
    command = ["node", str(SCRIPT), str(SCHEMAS)]
    done = subprocess.run(command, input=json.dumps(board), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("prefix", ["core:", "vllm:"])
def test_perses_knows_every_key_and_unit(prefix: str) -> None:
    assert unknown(perses_dashboard(prefix)) == []


def test_what_perses_does_not_know_is_found() -> None:
    board = perses_dashboard()
    panel = board["spec"]["panels"]["panel1"]["spec"]
    panel["colour"] = "red"
    panel["plugin"]["spec"]["yAxis"]["format"]["unit"] = "furlongs"
    del board["spec"]["variables"][0]["spec"]["allowMultiple"]
    told = unknown(board)
    assert len(told) == 3 and any("colour" in line for line in told) and any("furlongs" in line for line in told)
