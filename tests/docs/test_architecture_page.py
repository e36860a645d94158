"""docs/architecture.md shows the folders and the order of distributions as they are."""

import configparser
import re
import tomllib

from tests.layout import PACKAGES, PROJECTS, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_tree_has_every_folder_of_the_product() -> None:
    shown: dict[str, list[str]] = {}
    top = ""
    for line in PAGE.partition("## Folders")[2].partition("```\n")[2].partition("```")[0].splitlines():
        name = line.partition("/")[0]
        if line.startswith("  "):
            shown[top].append(name.strip())
        else:
            top = name
            shown[top] = []
    for top in ("core", "plugins"):
        there = [path.name for path in (ROOT / top).iterdir() if path.is_dir() and any(path.rglob("*.py"))]
        assert shown[top] == sorted(there)


def test_the_table_of_distributions_is_the_order_that_lint_checks() -> None:
    table = PAGE.partition("## Distributions")[2].partition("\n## ")[0]
    rows = [re.findall(r"`(core\w*)`", line) for line in table.splitlines() if line.startswith("| `")]
    layers = configparser.ConfigParser()
    layers.read(ROOT / ".importlinter")
    wanted = layers["importlinter:contract:distributions"]["layers"].split("\n")
    assert rows == [sorted(layer.replace("|", " ").split()) for layer in reversed(wanted) if layer.strip()]
    assert sorted(name for row in rows for name in row) == sorted(PACKAGES)
    named = re.findall(
        r"core-[\w-]+", "".join(line.rpartition("|")[0].rpartition("|")[2] for line in table.splitlines())
    )
    assert sorted(named) == sorted(tomllib.loads(path.read_text())["project"]["name"] for path in PROJECTS)


def test_the_picture_names_every_package() -> None:
    picture = (ROOT / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8")
    words = set(re.findall(r"\bcore_\w+|core/|(?<![\w])_\w+", picture))
    assert [name for name in PACKAGES if not {name, f"{name}/", name.removeprefix("core")} & words] == []
