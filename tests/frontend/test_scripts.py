"""Scripts written for vLLM, with only the name of the imported package changed."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
PRINTED = {
    "command_line": ["'The first' 6", "'The second' 6", "2 length"],
    "engine_loop": ["1 [4]", "2 [5, 5]", "3 [6, 6, 6]"],
    "streams": ["[6, 6]"],
    "beams_and_metrics": ["[4, 4, 4]", "True"],
    "logits_processors": ["3", "3 True", "3 False", "2 True"],
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_script_runs_with_its_imports_changed(
    name: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = SCRIPTS / f"{name}.py"
    source = re.sub(r"^from vllm\b", "from core_compat", file.read_text(), flags=re.MULTILINE)
    arguments = ["--model", str(tiny_llama)]
    if name in ("command_line", "engine_loop"):
        arguments += ["--kv-cache-memory-bytes", "8M"]
    monkeypatch.setattr(sys, "argv", [str(file), *arguments])
    program = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", program)  # where classes of a program are found by their path
    exec(compile(source, file, "exec"), vars(program))
    assert capsys.readouterr().out.splitlines() == PRINTED[name]
