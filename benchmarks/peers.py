"""`core` against vLLM, llama.cpp, ik_llama.cpp, transformers and OpenVINO.

    python benchmarks/peers.py                  or: python -m benchmarks.peers

Makes an environment for each peer and a checkpoint in each format (both once), measures scenario by scenario, keeps every
figure in a JSON file, and writes the report and its plot from that file. Linux only. The parts are in `benchmarks/peer/`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

if __name__ == "__main__":
    if not __package__:  # run as a file: make the checkout importable instead of this folder
        sys.path[0] = str(Path(__file__).resolve().parents[1])
    if missing := [name for name in ("rich", "torch", "gguf", "psutil") if importlib.util.find_spec(name) is None]:
        raise SystemExit(f"{', '.join(missing)} cannot be imported; run `make test` once, then use .venv/bin/python.")
    from benchmarks.peer.command import main

    main()
