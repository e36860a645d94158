"""What `core plugins new` writes works as written: installed by pip, listed, checked, and its own tests pass."""

import json

import pytest

from core_kit.checkpoints import write_checkpoint
from core_kit.skeleton import kinds
from tests.loaders.gguf_files import write_gguf

pytestmark = pytest.mark.slow


def test_they_are_listed_as_available(core):
    rows = {row["name"]: row for row in json.loads(core("plugins", "list", "--json").stdout)}
    for kind in kinds():
        row = rows[f"new_{kind}"]
        assert (row["kind"], row["status"], row["reason"]) == (kind, "available", "")
        distribution = f"core-new-{kind}".replace("_", "-")
        assert (row["distribution"], row["version"]) == (distribution, "0.1.0")


def test_the_method_leaves_what_its_groups_do_not_divide_and_refuses_what_is_packed(tmp_path, core, generate):
    narrow = str(write_checkpoint(tmp_path / "narrow", hidden_size=48, intermediate_size=80, num_attention_heads=2))
    settings = {"model": narrow, "quantization": "new_quantization", "quantization_config": {"group_size": 32}}
    tokens, *_ = generate({"narrow": settings}, [[1, 40, 41]])["narrow"]
    assert len(tokens) == 1 and len(tokens[0]) == 16
    packed = write_gguf(tmp_path / "packed.gguf")
    done = core("plugins", "explain", str(packed), "--quantization", "new_quantization")
    assert done.returncode == 2
    assert "refuses: checkpoint" in done.stderr and "leave --quantization out" in done.stderr


@pytest.mark.slow
def test_their_own_tests_pass(python, generated, site):
    """Each holds the whole conformance suite of its kind, on the installed package."""
    folders = [str(folder / "tests") for folder in generated.values()]
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "-c",
        "/dev/null",
        "--rootdir",
        str(site.parent),
    ]
    done = python("-m", "pytest", *options, *folders, cwd=site.parent)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "failed" not in done.stdout
