"""Small packages of plugins, written where an installer would put them, in versions with and without a fault."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from core_kit.skeleton import renamed

TEMPLATES: Final = Path(__file__).parents[2] / "plugins" / "kit" / "core_kit" / "templates"
GROUPS: Final = {"logits_processor": "core.logits_processors", "attention": "core.attention", "policy": "core.policies"}
PROCESSOR: Final = '''
"""A processor for every request, which changes nothing unless a fault is planted."""
import time

from core_runtime.contracts import BatchChanges


class Processor:
    is_argmax_invariant = False

    def validate_params(self, params):
        """Any parameters."""

    def wants(self, params):
        return True

    def update(self, changes: BatchChanges):
        """Nothing is kept of sequences."""

    def apply(self, logits, rows):
        # FAULT
        return logits

    def example_params(self):
        return None
'''
FAULTS: Final = {
    "none": {"logits_processor": "", "attention": "", "policy": ""},
    "bits": {
        "logits_processor": "logits = logits * (1 + 2**-22)",
        "attention": "out.mul_(1 + 2**-20)",
    },
    "tokens": {
        "logits_processor": "logits = logits.clone(); logits[:, 7] += 100.0",
        "attention": "out.neg_()",
    },
    "failure": {
        "logits_processor": "raise ValueError('planted')",
        "attention": "raise ValueError('planted')",
        "policy": "raise ValueError('planted')",
    },
}
SPIN: Final = "end = time.perf_counter() + {seconds!r}\n{indent}while time.perf_counter() < end: pass"


@dataclass(frozen=True)
class Plugin:
    """One package with one plugin."""

    name: str
    kind: str

    @property
    def words(self) -> list[str]:
        """The arguments of `core serve` that choose it."""
        flag = {
            "logits_processor": "--logits-processors",
            "attention": "--attention-backend",
            "policy": "--scheduling-policy",
        }
        return [flag[self.kind], self.name]


def install(site: Path, plugin: Plugin, version: str, fault: str = "none", seconds: float = 0.0) -> None:
    """Install one version.

    fault: a key of `FAULTS`, `slow` (for so many seconds a step), `comment` (other bytes, same work).
    """
    module = f"core_{plugin.name}"
    for old in site.glob(f"{module}*"):
        shutil.rmtree(old)
    folder = site / module
    folder.mkdir(parents=True)
    for source in (TEMPLATES / plugin.kind / "core_my_plugin").glob("*.py"):
        (folder / source.name).write_text(renamed(source.read_text(), plugin.name, plugin.kind))
    (folder / "__init__.py").write_text(f"# {version}\n" if fault == "comment" else "")
    _plant(folder, plugin.kind, fault, seconds)
    info = site / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: core-{plugin.name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{GROUPS[plugin.kind]}]\n{plugin.name} = {module}.manifest\n")


def _plant(folder: Path, kind: str, fault: str, seconds: float) -> None:
    place = {
        "logits_processor": ("processor.py", "        # FAULT", ""),
        "attention": ("backend.py", "            start += queries\n", "        "),
        "policy": ("policy.py", "        return len(request.prompt_token_ids), arrival", "        "),
    }
    file, anchor, _ = place[kind]
    path = folder / file
    text = PROCESSOR if kind == "logits_processor" else path.read_text()
    indent = "        "
    line = SPIN.format(seconds=seconds, indent=indent) if fault == "slow" else FAULTS.get(fault, FAULTS["none"])[kind]
    assert anchor in text
    if kind == "logits_processor":
        text = text.replace(anchor, f"{indent}{line}")
    elif kind == "attention":
        text = f"import time\n{text}".replace("from __future__ import annotations\n", "")
        text = text.replace(anchor, f"{anchor}{indent}{line}\n")
    else:
        text = f"import time\n{text}".replace("from __future__ import annotations\n", "")
        text = text.replace(anchor, f"{indent}{line}\n{anchor}")
    path.write_text(text)
