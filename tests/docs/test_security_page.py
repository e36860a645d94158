"""docs/security.md names tests that exist, and what it says of code is so."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.layout import PACKAGES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
CLASSES = PAGE.partition("## Classes of advisories")[2].partition("\n## ")[0]
NEVER = {
    "eval", "exec", "torch.load", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads", "yaml.load",
    "yaml.unsafe_load", "os.system", "numpy.load", "np.load",
}  # fmt: skip
SUSPICIOUS = re.compile(r"\b(eval|exec|loads?|Unpickler|unsafe_load|system|shell)\b\s*[(=]")
ALLOWED = {
    ("plugins/kit/core_kit/checks/model.py", "pickle.loads"),  # of what it has pickled itself
    ("plugins/kit/core_kit/templates/adapter/core_my_plugin/format.py", "np.load"),
    ("plugins/kit/core_kit/templates/loader/core_my_plugin/loader.py", "np.load"),
    ("plugins/loaders/core_loaders/npcache/folder.py", "np.load"),
    ("plugins/quantization/core_quantization/gguf/grids.py", "np.load"),
}


def test_each_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 40
    for file, name in named:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), (
            file,
            name,
        )


def test_each_advisory_is_in_one_class() -> None:
    rows = [line.split(" | ")[1] for line in CLASSES.splitlines() if line.startswith("| ") and "Advisories" not in line]
    ids = [found for row in rows for found in re.findall(r"PYSEC-2026-\d+|GHSA-\w+|20\d\d-\d+", row)]
    assert len(ids) == len(set(ids)) == 117


def calls(source: str) -> Iterator[tuple[str, ast.Call]]:
    """The calls in a module by the names of their functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_the_product_evaluates_and_unpickles_nothing() -> None:
    found = set()
    for folder in PACKAGES.values():
        for path in sorted(folder.rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if not SUSPICIOUS.search(source):  # parsing everything takes seconds
                continue
            file = path.relative_to(ROOT).as_posix()
            for name, call in calls(source):
                if name in NEVER:
                    found.add((file, name))
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert keywords.get("shell", "False") == keywords.get("allow_pickle", "False") == "False", file
    assert found <= ALLOWED, found - ALLOWED
