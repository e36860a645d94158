"""The site has every page of docs/, and links that lead out of it become words."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / ".ci" / "site"


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location("pages_of_the_site", SITE / "pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_has_a_place_in_the_navigation(pages):
    listed = re.findall(r"^\s+- (\S+\.md)$", (SITE / "mkdocs.yml").read_text(), re.MULTILINE)
    here = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(here | set(pages.PAGES.values()))


@pytest.mark.parametrize(
    ("source", "uri", "link", "written"),
    [
        ("README.md", "index.md", "[kv](docs/kv.md#connectors)", "[kv](kv.md#connectors)"),
        ("README.md", "index.md", "[kinds](docs/plugins/)", "[kinds](plugins/README.md)"),
        ("docs/plugins/api.md", "plugins/api.md", "[kv](../kv.md)", "[kv](../kv.md)"),
        ("docs/usage.md", "usage.md", "[security](../SECURITY.md)", "[security](SECURITY.md)"),
        ("docs/usage.md", "usage.md", "![picture](images/page-chat.png)", "![picture](images/page-chat.png)"),
        ("docs/usage.md", "usage.md", "[`x.py`](../tests/x.py)", "`tests/x.py`"),
        ("docs/usage.md", "usage.md", "[a test](../tests/x.py)", "a test (`tests/x.py`)"),
        ("docs/sizes.md", "sizes.md", "[rows](sizes.jsonl)", "rows (`docs/sizes.jsonl`)"),
        ("docs/usage.md", "usage.md", "[there](#here)", "[there](#here)"),
        ("docs/usage.md", "usage.md", "[vLLM](https://docs.vllm.ai)", "[vLLM](https://docs.vllm.ai)"),
    ],
)
def test_links_lead_to_pages_or_become_words(pages, source, uri, link, written):
    assert pages.LINK.sub(lambda found: pages.rewritten(found, source, uri), link) == written
