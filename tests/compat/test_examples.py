"""The runner of vLLM's examples changes what it says and judges by what scripts say. No script of vLLM is here."""

from pathlib import Path

import pytest

from tests.compat.examples import main, scripts
from tests.compat.rewriting import rewritten
from tests.compat.stand_ins import kind_of
from tests.compat.verdict import judge

SCRIPT = '''"""Names such as owner/model in a text stay."""
import argparse
import vllm
from vllm import LLM, SamplingParams
from vllm.utils import random_uuid

KIND = "text/plain"
PATH = "folder/file.json"
llm = LLM(model="owner/model-7B", tokenizer='owner/other-reward')
print(f"{llm} owner/model")
'''


def test_imports_and_models_change_and_nothing_else() -> None:
    changed = rewritten(SCRIPT, lambda name: f"/tiny/{kind_of(name)}")
    before, after = SCRIPT.splitlines(), changed.splitlines()
    different = [new for old, new in zip(before, after, strict=True) if old != new]
    assert different == [
        "import core_compat as vllm",
        "from core_compat import LLM, SamplingParams",
        "from core_compat.utils import random_uuid",
        "llm = LLM(model='/tiny/decoder', tokenizer='/tiny/classes')",
    ]


TRACE = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    x()\n'


@pytest.mark.parametrize(
    "code, errors, outcome, topic",
    [
        (0, "a warning", "ran", ""),
        (
            1,
            TRACE + "ModuleNotFoundError: There is no core_compat.multimodal: prompts are text",
            "refused",
            "media",
        ),
        (1, TRACE + "core.api.errors.ConfigError: tensor_parallel_size 2: one rank.", "refused", "several devices"),
        (1, TRACE + "ModuleNotFoundError: No module named 'ray'", "needs", "another package"),
        (1, TRACE + "ModuleNotFoundError: No module named 'core_compat.nowhere'", "failed", ""),
        (1, TRACE + "AttributeError: 'LLM' object has no attribute 'nothing'", "failed", ""),
        (2, "usage: a.py\na.py: error: the following arguments are required: --x", "needs", "arguments of its own"),
    ],
)
def test_verdicts(code: int, errors: str, outcome: str, topic: str) -> None:
    verdict = judge(code, errors)
    assert (verdict.outcome, verdict.topic) == (outcome, topic)


def test_a_folder_is_run_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.py").write_text("from vllm.utils import random_uuid\nassert len(random_uuid()) == 32\n")
    (tmp_path / "media.py").write_text("from vllm.assets.image import ImageAsset\n")
    (tmp_path / "helper.py").write_text("print('imports nothing')\n")
    assert [path.name for path in scripts(tmp_path)] == ["good.py", "media.py"]
    report = tmp_path / "report.md"
    assert main([str(tmp_path), "--model", "/nowhere", "--report", str(report)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("2 scripts: 1 ran, 1 refused, 0 needs, 0 failed.") and "refused: media: 1" in told
    assert report.read_text() == told
