"""Adapters that change a tower and its connector (`--enable-tower-connector-lora`).

Owns: `TowerAdapters`: the check of their changes, and what a layer's output gets while an item is computed with one. Never
does: read a file, or change a weight. Called by: the executor's reading of adapters (keeps and drops), the observer of media
(finds).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from torch import Tensor, nn

from core.api.adapters import AdaptersConfig
from core.api.errors import UserError, nearest
from core_runtime.executor.adapters.towers import TowerPart
from core_runtime.weights.adapter_contents import ModuleChange

PREFIXES: Final = ("base_model.", "model.", "thinker.model.", "thinker.")
"""What peft puts before the names of a tower's modules."""
SERVED: Final = frozenset({"module", "a", "b", "scale"})


class LinearChange:
    """The change of one layer: scale · B · A. a: float32 [r, K]. b: float32 [N, r]."""

    def __init__(self, layer: nn.Linear, change: ModuleChange) -> None:
        assert change.a is not None and change.b is not None, "the caller has looked"
        self.layer = layer
        self.a, self.b, self.scale = change.a.float(), change.b.float(), change.scale

    @property
    def nbytes(self) -> int:
        """Bytes of both matrices."""
        return int(4 * (self.a.numel() + self.b.numel()))

    def __call__(self, layer: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        """Return the output of the changed layer; a forward hook of torch."""
        low = nn.functional.linear(given[0].float(), self.a)
        return output + (nn.functional.linear(low, self.b) * self.scale).to(output.dtype)


class TowerAdapters:
    """The adapters of one tower. Thread-safe.

    modules: of the tower, by name. config: limits of adapters.
    """

    def __init__(self, modules: Mapping[str, nn.Module], config: AdaptersConfig) -> None:
        self._modules = modules
        self._config = config
        self._kept: dict[str, tuple[LinearChange, ...]] = {}
        self._lock = threading.Lock()

    def keep(self, name: str, digest: str, changes: Sequence[ModuleChange]) -> TowerPart:
        """Check the changes of an adapter and keep them; see `AdaptedTower`. Raises UserError."""
        made = tuple(self._made(name, change) for change in changes)
        if made:
            with self._lock:
                self._kept[digest] = made
        return TowerPart(max((len(one.a) for one in made), default=0), sum(one.nbytes for one in made))

    def drop(self, digest: str) -> None:
        """Forget an adapter."""
        with self._lock:
            self._kept.pop(digest, None)

    def find(self, digest: str) -> tuple[LinearChange, ...]:
        """Return the changes of an adapter; none for one that changes no tower."""
        with self._lock:
            return self._kept.get(digest, ())

    def _made(self, name: str, change: ModuleChange) -> LinearChange:
        """Return the change of a module. Raises UserError for one that a tower cannot have."""
        module = change.module
        layer = next((self._modules[found] for found in _names(module) if found in self._modules), None)
        if layer is None:
            raise UserError(
                f"Adapter '{name}' changes {module}, but the tower has no such module, or it is not loaded"
                f"{nearest(module, list(self._modules))}."
            )
        others = [field for field in change.__dataclass_fields__ if field not in SERVED and getattr(change, field)
                  is not None and getattr(change, field) is not False]  # fmt: skip
        if not isinstance(layer, nn.Linear) or change.a is None or change.b is None or others:
            what = f"{type(layer).__name__} ({', '.join(others) or 'A and B'})"
            raise UserError(
                f"Adapter '{name}' changes {module}, a {what}; of a tower, linear layers are changed by A and B alone. Train "
                "it without DoRA, biases and modules_to_save there."
            )
        self._check_limits(name, change, layer)
        return LinearChange(layer, change)

    def _check_limits(self, name: str, change: ModuleChange, layer: nn.Linear) -> None:
        """Raise UserError for matrices that do not fit a layer, or that the server's arguments exclude."""
        module = change.module
        assert change.a is not None and change.b is not None, "both are there"
        expected = [(len(change.a), layer.in_features), (layer.out_features, len(change.a))]
        found = [tuple(change.a.shape), tuple(change.b.shape)]
        if found != expected:
            raise UserError(f"Adapter '{name}': A and B of {module} have the shapes {found}, expected {expected}.")
        most, targets = self._config.max_lora_rank, self._config.target_modules
        if len(change.a) > most:
            raise UserError(
                f"Adapter '{name}' has rank {len(change.a)} at {module}, more than --max-lora-rank {most}; raise that."
            )
        if targets and not any(module == target or module.endswith(f".{target}") for target in targets):
            raise UserError(
                f"Adapter '{name}' changes {module}, which is not among --lora-target-modules ({', '.join(targets)}); add it."
            )


@contextmanager
def adapted(changes: Sequence[LinearChange]) -> Iterator[None]:
    """Have the layers of a tower computed with these changes; the tower is used by one thread."""
    hooks = [change.layer.register_forward_hook(change) for change in changes]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _names(module: str) -> Iterator[str]:
    """Yield the names that a tower may have for a module of the whole model."""
    yield module
    for prefix in PREFIXES:
        if module.startswith(prefix):
            yield module.removeprefix(prefix)
