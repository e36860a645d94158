"""`python -m tests.families MODEL_TYPE [VARIANT]`: one architecture's checkpoint, and how our row fares with it.

Owns: what is printed for whoever writes a row. Never does: judge (the tests do). Called by: people.
"""

import argparse
import json
import re
import sys
import traceback
import warnings
from collections.abc import Iterable

import torch
import transformers
from safetensors import safe_open
from torch import Tensor

from core.api.errors import CoreError
from core_runtime.models.families import families
from tests.families.architectures import everything, variants
from tests.families.comparison import distances
from tests.families.harness import Harness
from tests.families.oracle import Reference, hidden_states, load, reference
from tests.families.reads import keys_read

LAYER = re.compile(r"(.*?\b(?:layers|h|blocks|layer)\.)(\d+)(\..*)")
EXPERT = re.compile(r"(.*\bexperts\.)(\d+)(\..*)")
CLOSE = 2e-4


def main(arguments: list[str] | None = None) -> int:
    """Print what was asked for. Returns 1 where a row differs or fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.families")
    parser.add_argument("model_type", nargs="?", help="none: a list of all")
    parser.add_argument("variant", nargs="?", help="none: all, with the tensors and keys of the first")
    parser.add_argument("--brief", action="store_true", help="results alone, no tensors and keys")
    parser.add_argument("--trace", action="store_true", help="the whole traceback of an error")
    asked = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    if asked.model_type is None:
        _list()
        return 0
    known = variants(asked.model_type)
    if not known:
        print(f"tests/families has no tiny configuration of '{asked.model_type}'", file=sys.stderr)
        return 1
    chosen = [asked.variant] if asked.variant else known
    if not asked.brief:
        _describe(asked.model_type, chosen[0])
    failed = [variant for variant in chosen if not _try(asked.model_type, variant, trace=asked.trace)]
    return 1 if failed else 0


def _list() -> None:
    """Every architecture with its variants; a star where a row claims it."""
    claimed = {model_type for family in families() for model_type in family.model_types}
    by_type: dict[str, list[str]] = {}
    for model_type, variant in everything():
        by_type.setdefault(model_type, []).append(variant)
    for model_type, names in by_type.items():
        mark = "*" if model_type in claimed else " "
        print(f"{mark} {model_type}: {', '.join(names)}")


def _describe(model_type: str, variant: str) -> None:
    """The checkpoint: tensors of one layer of each kind, and the configuration with the keys that are read."""
    expected = reference(model_type, variant)
    print(f"# {model_type}, {variant}: {expected.path}\n")
    print("## Tensors (one layer of each kind, one expert)")
    for line in tensor_lines(expected):
        print(f"  {line}")
    config = json.loads((expected.path / "config.json").read_text())
    read = keys_read(model_type, variant)
    print("\n## config.json: read by the model's code (a key in parentheses: only when the configuration is made)")
    for key, value in sorted(config.items()):
        shown = json.dumps(value)
        print(f"  {key if key in read else f'({key})'} = {shown:.150}")
    absent = sorted(read - config.keys())
    print(f"  read and absent from the file: {', '.join(absent) or 'none'}\n")


def tensor_lines(expected: Reference) -> list[str]:
    """`name [shape]` of the tensors outside layers and of one layer of each kind, which other layers are alike."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(expected.path.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as stream:
            for name in stream.keys():  # noqa: SIM118
                shapes[name] = tuple(stream.get_slice(name).get_shape())
    outside: list[str] = []
    layers: dict[tuple[str, int], list[str]] = {}
    for name, shape in sorted(shapes.items()):
        expert = EXPERT.match(name)
        if expert is not None and expert[2] != "0":
            continue
        layer = LAYER.match(name)
        if layer is None:
            outside.append(f"{name} {list(shape)}")
            continue
        layers.setdefault((layer[1], int(layer[2])), []).append(f"{layer[3]} {list(shape)}")
    kinds: dict[tuple[str, ...], list[str]] = {}
    for (prefix, number), names in sorted(layers.items()):
        kinds.setdefault(tuple(names), []).append(f"{prefix}{number}")
    lines = outside
    for names, alike in kinds.items():
        lines.append(", ".join(alike))
        lines += [f"    {name}" for name in names]
    return lines


def _try(model_type: str, variant: str, *, trace: bool) -> bool:
    """Whether our row gives the reference's results; says how far it is, and from which block on."""
    expected = reference(model_type, variant)
    try:
        harness = Harness(expected.path)
        found = distances(harness, expected)
    except CoreError as error:
        print(f"{model_type}, {variant}: REFUSED: {error}")
        return False
    except Exception as error:
        print(f"{model_type}, {variant}: FAILED: {type(error).__name__}: {error}")
        if trace:
            traceback.print_exc()
        else:
            *_, last = traceback.extract_tb(error.__traceback__)
            print(f"  at {last.filename}:{last.lineno} in {last.name} (--trace shows the whole way)")
        return False
    good = max(found.values()) < CLOSE
    told = ", ".join(f"{way} {distance:.1e}" for way, distance in found.items())
    print(f"{model_type}, {variant}: {'equal' if good else 'DIFFERENT'}: {told}")
    if not good:
        _find_block(model_type, expected, harness)
    return good


def _find_block(model_type: str, expected: Reference, harness: Harness) -> None:
    """Say what leaves each block, ours beside transformers'; the last one of theirs is normed in most models."""
    ids = expected.prompts[0]
    try:
        theirs = hidden_states(load(expected.path, model_type), ids)
        ours = harness.hidden_states(ids)
    except Exception as error:
        print(f"  blocks cannot be compared: {type(error).__name__}: {error}")
        return
    places = ["embeddings", *(f"block {index}" for index in range(len(ours) - 1))]
    for place, mine, other in zip(places[:-1], ours, theirs, strict=False):
        print(f"  behind {place}: {_distance(mine, other)}")


def _distance(mine: Tensor, other: Tensor) -> str:
    if mine.shape != other.shape:
        return f"ours is {list(mine.shape)}, theirs {list(other.shape)}"
    difference = (mine - other).abs()
    rows: Iterable[int] = (difference.amax(1) > CLOSE).nonzero()[:, 0].tolist()
    first = next(iter(rows), None)
    told = f"{float(difference.max()):.1e} (theirs is {float(other.std()):.1e} wide)"
    return told if first is None else f"{told}, from token {first} on"


if __name__ == "__main__":
    raise SystemExit(main())
