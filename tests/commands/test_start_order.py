"""What `core serve` does before its engine process runs: nothing that could be done meanwhile."""

import subprocess
import sys

from core.processes import child_environment

UNTIL_SPAWN = """
import subprocess, sys
import core_engine

def spawned(self, command, **options):
    print(command[3], sorted({"asyncio", "torch", "numpy", "core_config", "fastapi"} & set(sys.modules)))
    raise SystemExit

subprocess.Popen.__init__ = spawned
subprocess.Popen.__del__ = lambda self: None
sys.argv = ["core", "serve"]
core_engine.main()
"""


def test_the_engine_process_is_spawned_before_slow_modules_are_imported() -> None:
    command = [sys.executable, "-c", UNTIL_SPAWN]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=child_environment())
    assert ran.stdout.splitlines() == ["core.engine.process []"], ran.stderr[-2000:]
