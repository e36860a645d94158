"""Adapters: names, paths and files that are not what they should be, on a server that loads adapters for its operator.

Owns: the rows, and the files that they name, below one directory. Never does: send anything. Called by: the phase.
"""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.adapters.drawn import shapes_of, write_adapter
from tests.attack.make import given, nested
from tests.attack.row import Row
from tests.attack.rows_items import SOUND as ITEMS

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
GOOD, OTHER = "good", "other"
RAN = "code-ran"
LONG = "x" * 10_000
SPARSE_BYTES = 1 << 40
REFUSED, OUTSIDE, UNKNOWN = frozenset({400}), frozenset({403, 404}), frozenset({404})

# (what is odd about it, the path)
PATHS = [
    ("a folder above", "../secret"),
    ("a folder above, behind a good one", "good/../../secret"),
    ("an absolute path outside", "/etc/passwd"),
    ("the directory itself", "."),
    ("no path", ""),
    ("a link out", "link"),
    ("a link in a circle", "circle"),
    ("a NUL", "good\0"),
    ("a name of 10,000 letters", LONG),
    ("10,000 folders", "a/" * 5_000),
    ("a name that is not there", "nowhere"),
    ("half of a character", "\ud800"),
    ("a home", "~root"),
    ("a URL", "file:///etc/passwd"),
    ("a pipe to which nobody writes", "config-is-a-pipe/adapter_config.json"),
]
NAMES = [
    ("an empty name", ""),
    ("a name of 10,000 letters", LONG),
    ("a name with a NUL", "a\0b"),
    ("a name with a new line", "a\nb"),
    ("half of a character as a name", "\ud800"),
    ("a number as a name", 5),
    ("a list as a name", ["a"]),
    ("no name", None),
]
MODELS = [*(name for name in NAMES if name[1] is not None), ("..", ".."), ("a path", "../secret"), ("a link", "link")]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [65]},
    **ITEMS,
}


def _tensors(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return write


def _config(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / CONFIG).write_text(text) and None


def _cut(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


def _head(number: int) -> Callable[[Path], None]:
    """A file whose header has so many bytes by its first eight."""
    return lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", number) + b"{}" * 100) and None


def _sparse(folder: Path) -> None:
    """A terabyte of zeros that takes no place."""
    os.truncate(folder / WEIGHTS, SPARSE_BYTES)


def _nan(tensors: dict[str, Any]) -> None:
    next(iter(tensors.values()))[0, 0] = torch.nan


def _wide(tensors: dict[str, Any]) -> None:
    name = next(iter(tensors))
    tensors[name] = torch.zeros(tensors[name].shape[0] + 1, tensors[name].shape[1])


def _strange(tensors: dict[str, Any]) -> None:
    tensors["base_model.model.nowhere.lora_A.weight"] = torch.zeros(2, 2)


def _many(tensors: dict[str, Any]) -> None:
    for number in range(20_000):
        tensors[f"base_model.model.nowhere.{number}.lora_A.weight"] = torch.zeros(1)


class Code:
    """What a pickle runs."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.file, "code")


def _pickle(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save({**tensors, "x": Code(folder.parent / RAN)}, folder / "adapter_model.bin")


def _pipe(folder: Path) -> None:
    """A pipe to which nobody writes."""
    (folder / CONFIG).unlink()
    os.mkfifo(folder / CONFIG)


def _pipe_of_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def _folder(folder: Path) -> None:
    (folder / CONFIG).unlink()
    (folder / CONFIG).mkdir()


def _linked_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to("/etc/passwd")


FILES: dict[str, Callable[[Path], None]] = {
    "weights-cut": _cut,
    "weights-empty": lambda folder: (folder / WEIGHTS).write_bytes(b"") and None,
    "weights-of-a-terabyte": _sparse,
    "header-of-2^62-bytes": _head(1 << 62),
    "header-of-a-gigabyte": _head(1 << 30),
    "weights-nan": _tensors(_nan),
    "weights-of-another-rank": _tensors(_wide),
    "weights-of-no-module": _tensors(_strange),
    "20,000-tensors": _tensors(_many),
    "weights-linked": _linked_weights,
    "weights-are-a-pipe": _pipe_of_weights,
    "pickle-with-code": _pickle,
    "config-is-a-pipe": _pipe,
    "config-is-a-folder": _folder,
    "config-is-no-json": _config("{"),
    "config-is-a-list": _config("[]"),
    "config-nested": _config('{"r": %s}' % nested(100_000)),  # noqa: UP031
    "config-of-8-MB": _config(json.dumps({"peft_type": "LORA", "x": "y" * (8 << 20)})),
    "config-with-a-slow-pattern": _config(
        json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "rank_pattern": {"(.*.*)*.*=": 4}})
    ),
    "config-with-rank-2^70": _config(json.dumps({"peft_type": "LORA", "r": 2**70, "lora_alpha": 8})),
}


def write_files(directory: Path, model: str) -> None:
    """Write everything that rows name."""
    shapes = shapes_of(model)
    for seed, name in enumerate((GOOD, OTHER)):
        write_adapter(directory / name, shapes, rank=8, seed=seed)
    write_adapter(directory.parent / "secret", shapes, rank=8, seed=9)
    (directory / "link").symlink_to(directory.parent / "secret")
    (directory / "circle").symlink_to("circle")
    for name, change in FILES.items():
        change(write_adapter(directory / name, shapes, rank=4, seed=5))


def load_of(name: Any, path: Any, **fields: Any) -> bytes:
    """The body of a load."""
    return given({"lora_name": name, "lora_path": path, **fields})


def rows() -> list[Row]:
    """All of them; none of them loads anything."""
    found = [Row(f"loading from {what}", LOAD, load_of("x", path), allowed=OUTSIDE | REFUSED) for what, path in PATHS]
    found += [Row(f"loading under {what}", LOAD, load_of(name, GOOD), allowed=REFUSED) for what, name in NAMES]
    found += [
        Row(f"unloading {what}", UNLOAD, given({"lora_name": name}), allowed=REFUSED | UNKNOWN) for what, name in NAMES
    ]
    found += [Row(f"loading {name}", LOAD, load_of("x", name), seconds=10.0, allowed=REFUSED) for name in FILES]
    found += [
        Row("a path that is a list", LOAD, load_of("x", ["good"]), allowed=REFUSED),
        Row("in place of a text", LOAD, load_of("x", "weights-nan", load_inplace="yes"), allowed=REFUSED),
        Row("a field that nobody knows", LOAD, load_of("x", GOOD, unheard_of=5), allowed=REFUSED),
        Row("no body", LOAD, b"", allowed=REFUSED),
        Row("nested", LOAD, nested(100_000).encode(), allowed=REFUSED),
        Row("a load with GET", LOAD, method="GET", allowed=frozenset({405})),
        Row("a load without a key", LOAD, load_of("x", GOOD), keyed=False, allowed=frozenset({401})),
    ]
    for route, body in ROUTES.items():
        found += [
            Row(f"{route}: the model is {what}", route, given({**body, "model": model}), allowed=REFUSED | UNKNOWN)
            for what, model in MODELS
        ]
    return found
