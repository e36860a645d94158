"""Packages written against the documentation alone, and packages that `core plugins new` writes: installed once, by pip."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from core_kit.skeleton import kinds, write_package

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PIP = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
GENERATE = """
import json, sys
from core import LLM, SamplingParams

def run(settings):
    asked = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    room = {"max_model_len": 64, "kv_cache_memory_bytes": 4 << 20, "dtype": "float32", "use_tqdm_on_load": False}
    with LLM(**{**room, **settings}) as llm:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in json.loads(sys.argv[2])], asked, use_tqdm=False)
        groups = [[group.kind, len(group.layers), group.num_state_blocks] for group in llm._config.cache.groups]
        return [output.outputs[0].token_ids for output in outputs], llm.stats().num_preemptions, groups

print(json.dumps({name: run(settings) for name, settings in json.loads(sys.argv[1]).items()}))
"""


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A directory that all processes of this run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "external"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    """{kind: folder} of packages as `core plugins new` writes them."""
    work = tmp_path_factory.mktemp("generated")
    return {kind: write_package(kind, f"new-{kind}", work)[0] for kind in kinds()}


@pytest.fixture(scope="session")
def site(shared, generated):
    """A directory with all packages, installed by pip: by the first process that needs it, for all."""
    with open(shared / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "site").exists():
            install(shared, generated).rename(shared / "site")
    return shared / "site"


def install(work, generated):
    """The directory with all packages, under a name that says that it may be half done."""
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    sources = sorted(path.parent for path in HERE.glob("*/pyproject.toml"))
    copies = [shutil.copytree(source, work / source.name, ignore=ignored) for source in sources]
    copies += [shutil.copytree(folder, work / folder.name, ignore=ignored) for folder in generated.values()]
    target = work / "unfinished"
    subprocess.run([*PIP, "--target", str(target), *map(str, copies)], check=True, timeout=240)
    return target


@pytest.fixture(scope="session")
def python(site):
    """python(*words) -> a finished process that sees the packages and this engine."""

    def run(*words, timeout=240, cwd=None, **environment):
        paths = [str(site), str(ROOT), os.environ.get("PYTHONPATH", "")]
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1", **environment}
        return subprocess.run(
            [sys.executable, "-P", *words],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=cwd,
        )

    return run


@pytest.fixture(scope="session")
def generate(python):
    """generate({name: settings of LLM}, prompts) -> {name: (16 tokens of each prompt, preemptions, KV groups)}, from a
    process that sees the packages."""

    def run(jobs, prompts):
        done = python("-c", GENERATE, json.dumps(jobs), json.dumps(prompts))
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def core(python):
    """core(*words) -> the finished command `core WORDS`."""
    return lambda *words, **environment: python("-m", "core", *words, **environment)
