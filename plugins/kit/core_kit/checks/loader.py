"""Checks of loaders: manifests, tensors, damaged and missing files.

Owns: the checks. Never does: know a file format. Called by: `core_kit.suite`.
"""

from __future__ import annotations

import functools
import math
import shutil
from pathlib import Path

from core.api.errors import CoreError, UserError
from core_config.locating.files import file_facts
from core_kit.case import Failure, Skipped, Subject
from core_kit.checkpoints import write_checkpoint
from core_runtime.specs.checkpoint import ITEM_BYTES, CheckpointManifest

PLAIN = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def missing_is_a_sentence(subject: Subject) -> None:
    """A model that is not there is a CheckpointError (or UserError) that names it."""
    ref = "/no/such/model"
    try:
        subject.loaded.resolve(ref)
    except UserError as error:
        if "no/such/model" not in str(error):
            raise Failure(f"the error does not name the model: '{error}'") from None
        return
    except Exception as error:
        raise Failure(f"resolve raises {type(error).__name__} for a missing model; raise CheckpointError") from None
    raise Failure("resolve accepts a model that does not exist")


def resolves_completely(subject: Subject) -> None:
    """resolve tells configuration, files and every tensor with a size that fits its shape."""
    manifest = _manifest(subject)
    if not manifest.config.get("model_type") and not manifest.config.get("architectures"):
        raise Failure("the configuration names neither model_type nor architectures")
    if not manifest.tensors:
        raise Failure("the manifest has no tensors")
    for name, info in manifest.tensors.items():
        size = ITEM_BYTES.get(info.dtype)
        if info.name != name:
            raise Failure(f"tensor '{name}' is called '{info.name}' in its own TensorInfo")
        if size is not None and info.nbytes != size * math.prod(info.shape):
            raise Failure(f"tensor '{name}' is {info.dtype} {info.shape}, which is not {info.nbytes} bytes")
        if not 0 <= info.file < max(len(manifest.files), 1):
            raise Failure(f"tensor '{name}' lies in file {info.file}, but there are {len(manifest.files)}")


def resolves_equally(subject: Subject) -> None:
    """Resolving twice gives the same manifest, which survives the way to another process."""
    import msgspec

    manifest = _manifest(subject)
    if subject.loaded.resolve(_ref(subject)) != manifest:
        raise Failure("resolve answers differently the second time")
    if msgspec.msgpack.decode(msgspec.msgpack.encode(manifest), type=CheckpointManifest) != manifest:
        raise Failure("the manifest holds values that msgpack changes")


def yields_what_is_asked(subject: Subject) -> None:
    """iter yields each tensor that was asked for, once, with the shape and type that the manifest tells."""
    import torch

    manifest = _manifest(subject)
    names = list(manifest.tensors)
    wanted = [*names[1::2], names[0]]
    got = {}
    for name, tensor in subject.loaded.iter(manifest, wanted):
        if name in got:
            raise Failure(f"tensor '{name}' came twice")
        if tensor.device.type != "cpu":
            raise Failure(f"tensor '{name}' is on {tensor.device}; loaders deliver to the CPU")
        info = manifest.tensors.get(name)
        if info is not None and info.dtype in PLAIN:
            expected = getattr(torch, PLAIN[info.dtype])
            if tuple(tensor.shape) != tuple(info.shape) or tensor.dtype is not expected:
                raise Failure(
                    f"tensor '{name}' came as {tensor.dtype} {tuple(tensor.shape)}, "
                    f"the manifest tells {info.dtype} {info.shape}"
                )
        got[name] = tensor.clone()
    if set(got) != set(wanted):
        odd = min(set(got) ^ set(wanted))
        raise Failure(f"tensor '{odd}' was {'not asked for' if odd in got else 'asked for, but did not come'}")
    for name, tensor in subject.loaded.iter(manifest, wanted[:3]):
        if not torch.equal(tensor, got[name]):
            raise Failure(f"tensor '{name}' has other values the second time")


def unknown_tensors_are_sentences(subject: Subject) -> None:
    """Asking for a tensor that is not there is an error with a sentence."""
    manifest = _manifest(subject)
    try:
        list(subject.loaded.iter(manifest, ["no.such.tensor"]))
    except CoreError as error:
        if "no.such.tensor" not in str(error):
            raise Failure(f"the error does not name the tensor: '{error}'") from None
        return
    except Exception as error:
        raise Failure(f"iter raises {type(error).__name__} for an unknown tensor; raise CheckpointError") from None
    raise Failure("iter says nothing about a tensor that does not exist")


def damage_is_a_sentence(subject: Subject) -> None:
    """Every file cut short or overwritten is a sentence, never a crash."""
    source = Path(_ref(subject))
    if not source.exists():
        raise Skipped("the checkpoint does not lie in the file system")
    _manifest(subject)
    files = [source]
    if source.is_dir():
        files = sorted(path for path in source.iterdir() if path.is_file())
    for number, file in enumerate(files):
        for how in ("cut", "overwritten"):
            folder = subject.directory / f"damaged-{number}-{how}"
            folder.mkdir()
            for path in files:
                shutil.copy(path, folder)
            target = folder / file.name
            data = file.read_bytes()
            half = data[: len(data) // 2]
            noise = b"\xff" * min(len(data), 4096)
            target.write_bytes(half if how == "cut" else noise)
            _read_all(subject, str(folder if source.is_dir() else target), f"{file.name}, {how}")
            shutil.rmtree(folder)


CHECKS = (
    missing_is_a_sentence,
    resolves_completely,
    resolves_equally,
    yields_what_is_asked,
    unknown_tensors_are_sentences,
    damage_is_a_sentence,
)


def _ref(subject: Subject) -> str:
    """Return the author's checkpoint, or the kit's plain one when the loader reads it."""
    if subject.model is not None:
        return subject.model
    directory = subject.directory / "plain"
    return str(directory if directory.exists() else write_checkpoint(directory))


@functools.lru_cache(maxsize=8)
def _resolved(loader: object, ref: str) -> CheckpointManifest:
    return loader.resolve(ref)  # type: ignore[attr-defined, no-any-return]


def _manifest(subject: Subject) -> CheckpointManifest:
    """Return a manifest. Raises Skipped when there is no checkpoint of the loader's own format."""
    ref = _ref(subject)
    if subject.model is None and subject.manifest.implements("core_claim"):
        claim = subject.manifest.call("core_claim", facts=file_facts(ref))
        if claim is None:
            raise Skipped(
                "it reads another format than the kit writes; give a small checkpoint of its own with --model"
            )
    return _resolved(subject.loaded, ref)


def _read_all(subject: Subject, ref: str, what: str) -> None:
    try:
        manifest = subject.loaded.resolve(ref)
        for _ in subject.loaded.iter(manifest, list(manifest.tensors)):
            pass
    except CoreError as error:
        if not str(error).strip():
            raise Failure(f"{what}: an error without a word") from None
    except Exception as error:
        raise Failure(f"{what}: {type(error).__name__}: {error}; raise CheckpointError with the file's name") from None
