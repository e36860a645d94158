"""One distribution of ours less: its choices are missed by a sentence, and everything else works."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.layout import PACKAGES, ROOT

pytestmark = pytest.mark.slow

GENERATES = """
import sys
from core import LLM, SamplingParams
llm = LLM(sys.argv[1], max_model_len=64)
print(len(llm.generate("a b c", SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)[0].outputs[0].token_ids))
"""
COMMAND = "import sys, core_engine; sys.argv[0] = 'core'; sys.exit(core_engine.main())"
NOT_NEEDED = ("apis", "commands", "compat", "kernels", "kit", "quantization", "speculative")
"""Without each of these the offline class serves a plain model on the CPU."""
MISSED = (
    ("quantization", ("--quantization", "int8"), "core-engine-quantization"),
    ("speculative", ("--speculative-config.method", "ngram"), "core-engine-speculative"),
    ("loaders", (), "core-engine-loaders"),
    ("policies", (), "core-engine-policies"),
    ("attention", (), "core-engine-attention"),
    ("platforms", (), "core-engine-platforms"),
)
"""Distribution, arguments that ask for one of its plugins, and the name that the sentence must have."""


def without(kind: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python where one distribution is not installed: neither its package nor its metadata can be found."""
    site = folder / "site"
    site.mkdir()
    hidden = f"core_{kind}-"
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(hidden):
            site.joinpath(path.name).symlink_to(path)
    folders = [package.parent for package in PACKAGES.values() if package.parent.name != kind]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [site, ROOT, *folders]))}
    command = [sys.executable, "-S", "-P", "-c", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("kind", NOT_NEEDED)
def test_the_offline_class_needs_no_more_than_it_uses(kind: str, tiny_llama: Path, tmp_path: Path) -> None:
    done = without(kind, tmp_path, GENERATES, str(tiny_llama))
    assert done.returncode == 0 and done.stdout.split()[-1] == "4", done.stderr[-2000:]


@pytest.mark.parametrize(("kind", "words", "named"), MISSED)
def test_what_is_missing_is_named(
    kind: str, words: tuple[str, ...], named: str, tiny_llama: Path, tmp_path: Path
) -> None:
    done = without(kind, tmp_path, COMMAND, "config", "explain", str(tiny_llama), *words)
    assert done.returncode == 2 and f"pip install {named}" in done.stderr, (done.stdout, done.stderr)


@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in MISSED}))
def test_plugins_of_others_are_still_listed(kind: str, tmp_path: Path) -> None:
    done = without(kind, tmp_path, COMMAND, "plugins", "list", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)
    assert rows and not [row for row in rows if row["distribution"] == f"core-engine-{kind}"]
