"""Fetch the routers of `test_other_routers.py` from vLLM's source archive: `python -m tests.apis.fetch_routers DIRECTORY`.

pip would build the archive, which takes an hour; two files of it are unpacked.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

INDEX: Final = "https://pypi.org/simple/vllm/"
VERSION: Final = "0.33.0"
FILES: Final = (
    "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py",
    "examples/disaggregated/disaggregated_serving/disagg_proxy_multiturn.py",
)


def main() -> None:
    """Download, verify and unpack."""
    place = Path(sys.argv[1])
    with urllib.request.urlopen(INDEX, timeout=60) as answer:
        found = re.search(
            rf'href="([^"#]+vllm-{re.escape(VERSION)}\.tar\.gz)#sha256=([0-9a-f]+)', answer.read().decode()
        )
    if found is None:
        raise SystemExit(f"{INDEX} has no source archive of {VERSION}.")
    archive = place / "vllm.tar.gz"
    with urllib.request.urlopen(urljoin(INDEX, found[1]), timeout=600) as answer:
        archive.write_bytes(answer.read())
    if hashlib.sha256(archive.read_bytes()).hexdigest() != found[2]:
        raise SystemExit("The archive is not the one that the index names.")
    with tarfile.open(archive) as unpacked:
        for name in FILES:
            member = unpacked.extractfile(f"vllm-{VERSION}/{name}")
            assert member is not None
            target = place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(member.read())
    archive.unlink()


if __name__ == "__main__":
    main()
