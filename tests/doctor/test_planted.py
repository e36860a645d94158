"""Twenty faults in installed packages are named, with real starts of a tiny model; unchanged packages are not."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from core import LLM
from core_commands.cli.plugin.doctor import doctor
from tests.doctor.packages import Plugin, install

PLUGINS: Final = [
    *(Plugin(f"p{index}", "logits_processor") for index in range(4)),
    Plugin("att", "attention"),
    Plugin("pol", "policy"),
]
SETTINGS: Final = {
    "max_model_len": 128,
    "max_num_seqs": 2,
    "kv_cache_memory_bytes": 4 << 20,
    "dtype": "float32",
    "logprobs_mode": "processed_logprobs",
    "attention_backend": "att",
    "scheduling_policy": "pol",
    "logits_processors": ["p0", "p1", "p2", "p3"],
}
START: Final = """
import json, sys
from core import LLM
LLM(sys.argv[1], state_canary=sys.argv[2], use_tqdm_on_load=False, **json.loads(sys.argv[3])).close()
"""
MEASURE: Final = """
import json, sys
from core_commands.doctor.starts import ProcessStarter
starter = ProcessStarter({"model": sys.argv[1], **json.loads(sys.argv[2])})
engine = starter.start([])
print(min(engine.round()[2] for _ in range(8)))
engine.close()
starter.close()
"""
PROCESSORS: Final = ("p0", "p1", "p2", "p3")
FAULTS: Final = [
    *(((name, "bits"),) for name in (*PROCESSORS, "att")),
    *(((name, "tokens"),) for name in (*PROCESSORS, "att")),
    *(((name, "slow"),) for name in (*PROCESSORS, "att")),
    *(((name, "failure"),) for name in ("p1", "att", "pol")),
    (("p0", "bits"), ("p3", "slow")),
    (("p2", "tokens"), ("att", "tokens")),
]
WHAT: Final = {"slow": "time"}
TOKENS_OF_A_ROUND: Final = 16
NUM_LAYERS: Final = 2


class Machine:
    """A directory with packages, and the commands that see them."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model = model
        self.site = folder / "site"
        self.records = folder / "canary"
        self.site.mkdir()
        for plugin in PLUGINS:
            install(self.site, plugin, "1.0")
        self.python("-c", START, str(model), str(self.records), json.dumps(SETTINGS))
        measured = self.python("-c", MEASURE, str(model), json.dumps(SETTINGS))
        self.step_s = float(measured.stdout) / TOKENS_OF_A_ROUND

    def python(self, *words: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, [str(self.site), *sys.path]))
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-P", *words], env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert fails or done.returncode in (0, 1), done.stderr[-3000:]
        return done

    def upgrade(self, faults: dict[str, str]) -> None:
        """Install version 1.1 of every package: these with a fault, the others with another comment."""
        for plugin in PLUGINS:
            calls = NUM_LAYERS if plugin.kind == "attention" else 1
            install(self.site, plugin, "1.1", faults.get(plugin.name, "comment"), 0.2 * self.step_s / calls)

    def doctor(self, *words: str) -> dict[str, Any]:
        flags = ["--state-canary", str(self.records), "--since", "1", "--json"]
        for name, value in SETTINGS.items():
            flags += ["--" + name.replace("_", "-"), *(value if isinstance(value, list) else [str(value)])]
        return json.loads(self.python("-m", "core", "plugins", "doctor", str(self.model), *flags, *words).stdout)


@pytest.fixture(scope="module")
def machine(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tiny_llama, tmp_path_factory.mktemp("doctor"))


@pytest.mark.slow
@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: "+".join(map("-".join, faults)))
def test_a_planted_fault_is_named(machine: Machine, faults: tuple[tuple[str, str], ...]) -> None:
    machine.upgrade(dict(faults))
    found = machine.doctor()
    named = {(each["packages"][0]["distribution"], each["what"]) for each in found["culprits"]}
    assert named == {(f"core-{name}", WHAT.get(fault, fault)) for name, fault in faults}, found
    assert all(len(each["packages"]) == 1 for each in found["culprits"])
    assert all(len(each["packages"][0]["files"]) > 0 for each in found["culprits"])


@pytest.mark.slow
def test_other_bytes_that_do_the_same_are_not_accused(machine: Machine) -> None:
    for _ in range(3):
        machine.upgrade({})
        found = machine.doctor()
        assert len(found["changed"]) == len(PLUGINS) and found["what"] is None and found["culprits"] == []


@pytest.mark.slow
def test_a_hundred_unchanged_starts_are_one_run_and_accuse_nobody(
    tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            LLM(str(tiny_llama), max_model_len=128, max_num_seqs=2, state_canary=str(tmp_path)).close()
    assert "State canary" not in caplog.text
    words = [
        str(tiny_llama),
        "--max-model-len",
        "128",
        "--max-num-seqs",
        "2",
        "--state-canary",
        str(tmp_path),
        "--json",
    ]
    assert doctor([*words, "--runs"]) == 0
    [run] = json.loads(capsys.readouterr().out)
    assert run["starts"] == 100 and len(run["times"]) == 16
    assert doctor(words) == 0
    assert json.loads(capsys.readouterr().out)["culprits"] == []
