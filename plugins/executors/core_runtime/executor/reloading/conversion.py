"""Conversion of any checkpoint to a directory of prepared kernels, which start without packing.

Owns: which kernels and tensors are written, and the directory that they are written to. Never does: prepare a weight.
Called by: `core convert`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from torch import Tensor

from core.api.config import EngineConfig
from core.api.errors import UserError
from core.plugin.table import PluginTable
from core_runtime.contracts import Loader, keeps_tensors
from core_runtime.executor.device import Device
from core_runtime.executor.instance import packing_of
from core_runtime.executor.plugin_loading import open_runtime
from core_runtime.executor.reloading.checkpoint import Checkpoint, made_for, open_checkpoint
from core_runtime.executor.reloading.prepared_writer import TYPES, PreparedWriter
from core_runtime.models.tensors import prepared as files
from core_runtime.models.tensors.loading import WeightLoading
from core_runtime.models.tensors.new_directory import describe, new_directory
from core_runtime.models.tensors.part_store import PartStore
from core_runtime.models.tensors.prepared import PreparedIndex, Source
from core_runtime.models.tensors.tensor_check import OWN_HEAD
from core_runtime.specs.checkpoint import ITEM_BYTES, CheckpointManifest, TensorInfo
from core_runtime.specs.decoder_spec import DecoderSpec


def convert(config: EngineConfig, out: Path) -> PreparedIndex:
    """Write the configured model to the new directory `out` and return its index.

    Raises UserError for a directory or a model that cannot be used, CheckpointError for a damaged checkpoint.
    """
    if config.model.implementation == "transformers":
        raise UserError(f"{config.model.model}: runs on transformers' layers; only the engine's own can be converted.")
    plugins = PluginTable(config.plugins.table)
    with contextlib.ExitStack() as undo:
        runtime = open_runtime(config, plugins)
        undo.callback(runtime.close)
        notes: list[_Noting] = []

        def noted(loader: Loader) -> Loader:
            notes.append(_Noting(loader))
            return notes[0]

        dtype = runtime.activation_dtype(config.model.dtype)
        checkpoint = open_checkpoint(config, plugins, dtype, wrap=noted)
        if checkpoint.prepared is not None:
            raise UserError(f"{config.model.model}: is converted already.")
        directory = undo.enter_context(new_directory(out))
        data = undo.enter_context(open(directory / files.DATA, "wb"))
        writer = PreparedWriter(data)
        device = Device(runtime)
        store = PartStore(device.weights_arena())
        packing = packing_of(config, checkpoint, device, plugins, store, recorder=writer.kernel)
        assert isinstance(checkpoint.spec, DecoderSpec)
        loading = WeightLoading(checkpoint.spec, checkpoint.manifest, packing)
        loading.run(checkpoint.loader, progress=config.use_tqdm_on_load)
        if not writer.kernels:
            raise UserError(
                f"--device {config.device}: has no kernels that can be saved, so there is nothing to convert to."
            )
        manifest = _store_rest(writer, checkpoint, notes[0], config)
        index = writer.index(made_for(config), _source(checkpoint.manifest), manifest)
        describe(directory, msgspec.structs.replace(index.manifest, ref=config.model.model))
        (directory / files.INDEX).write_bytes(msgspec.json.encode(index))
    return index


class _Noting:
    """A loader that records the names of the tensors it reads, and passes each tensor to `sink` while one is set."""

    def __init__(self, inner: Loader) -> None:
        self._inner = inner
        self.keeps_tensors = keeps_tensors(inner)
        self.asked: list[str] = []
        self.sink: Callable[[str, Tensor], None] | None = None

    def resolve(self, ref: str) -> CheckpointManifest:
        """Resolve with the inner loader."""
        return self._inner.resolve(ref)

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Read with the inner loader, recording each tensor."""
        self.asked += reads
        for name, tensor in self._inner.iter(manifest, reads):
            if self.sink is not None:
                self.sink(name, tensor)
            yield name, tensor


class _Rest:
    """The tensors that are part of no kernel, written under the checkpoint's own names.

    tensors: tensors of the new directory, by name.
    """

    def __init__(self, writer: PreparedWriter, original: CheckpointManifest) -> None:
        self._writer = writer
        self._original = original
        self.tensors: dict[str, TensorInfo] = {}
        for name, info in original.tensors.items():
            self.tensors[name] = msgspec.structs.replace(info, file=0, offset=0)

    def store(self, name: str, tensor: Tensor) -> None:
        """Write one tensor. Raises UserError for a packed one, which only its original file can hold."""
        info = self._original.tensors[name]
        dtype = TYPES.get(tensor.dtype)
        if dtype is None or (info.dtype not in ITEM_BYTES and dtype == "U8"):
            raise UserError(
                f"{self._original.ref}: tensor '{name}' of type {info.dtype} is in no kernel, and cannot be stored."
            )
        offset = self._writer.block(tensor).offset
        shape = tuple(tensor.shape)
        self.tensors[name] = TensorInfo(name, shape, dtype, tensor.nbytes, 0, offset, name)
        self._writer.stored.append(name)


def _store_rest(
    writer: PreparedWriter, checkpoint: Checkpoint, noting: _Noting, config: EngineConfig
) -> CheckpointManifest:
    """Write the tensors that are part of no kernel.

    Returns the manifest of the new directory, under the checkpoint's own names.
    """
    canonical = checkpoint.manifest
    original = noting.resolve(config.model.model)
    rest = _Rest(writer, original)
    names = [name for name in canonical.tensors if name not in writer.used]
    spec = checkpoint.spec
    if isinstance(spec, DecoderSpec) and spec.tied and OWN_HEAD in names:
        names.remove(OWN_HEAD)  # loading compared it with the embedding that it is tied to, so it is not stored twice
        noting.asked.clear()
        _exhaust(checkpoint.loader.iter(canonical, [OWN_HEAD]))
        # The wrapped loader has just recorded which tensors of the files make up the head.
        for name in noting.asked:
            del rest.tensors[name]
    noting.sink = rest.store
    _exhaust(checkpoint.loader.iter(canonical, names))
    return msgspec.structs.replace(original, tensors=rest.tensors, files=[files.DATA], config=config.model.hf_config)


def _exhaust(tensors: Iterator[tuple[str, Tensor]]) -> None:
    for _ in tensors:
        pass


def _source(manifest: CheckpointManifest) -> Source:
    sizes = {Path(file).name: Path(file).stat().st_size for file in manifest.files}
    told = msgspec.json.encode(manifest.tensors)
    return Source(manifest.ref, sizes, hashlib.sha256(told).hexdigest())
