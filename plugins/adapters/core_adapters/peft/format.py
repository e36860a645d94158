"""Adapters as peft saves them: `adapter_config.json` and the tensors next to it; or both from memory.

Owns: the meaning of the tensors' names and of the configuration's numbers. Never does: know the model.
Called by: the executor's reading of adapters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from core.api.errors import CheckpointError, UserError
from core_adapters.digests import FileDigests
from core_adapters.files import digest_of, pickled_tensors_of, safetensors_of, sent_tensors
from core_adapters.peft.keys import check_keys
from core_adapters.peft.patterns import LONGEST_MODULE, compiled
from core_adapters.peft.targets import Targets, is_named, names_of
from core_adapters.sent import SentPlace
from core_runtime.weights.adapter_contents import AdapterContents, ModuleChange
from core_tokens.checkpoint_files import inside, parse_json, read_json

CONFIG: Final = "adapter_config.json"
SAFETENSORS: Final = "adapter_model.safetensors"
PICKLED: Final = "adapter_model.bin"
PREFIX: Final = "base_model.model."
SENT: Final = "the adapter that was sent"
SENT_CONFIG: Final = "the configuration of the adapter that was sent"

FIELDS: Final = {
    "lora_A.weight": "a",
    "lora_B.weight": "b",
    "lora_B.bias": "added_bias",
    "lora_magnitude_vector": "magnitude",
    "lora_magnitude_vector.weight": "magnitude",
    "lora_embedding_A": "a",
    "lora_embedding_B": "b",
    "token_adapter.trainable_tokens_delta": "tokens",
    "base_layer.bias": "bias",
    "base_layer.weight": "weight",
    "bias": "bias",
    "weight": "weight",
}
"""Endings of tensors' names, and the field of `ModuleChange` that each is."""


STACKED: Final = ("gate_up_proj", "up_proj", "down_proj")
"""Parameters with all experts of a layer, in the order in which modules of transformers define them."""


class PeftFormat:
    """The format plugin."""

    def __init__(self) -> None:
        self._digests = FileDigests()

    def claims(self, path: str) -> bool:
        """Whether the directory has peft's configuration, or an adapter was sent."""
        return SentPlace.of(path) is not None or (Path(path) / CONFIG).is_file()

    def read(self, path: str) -> AdapterContents:
        """Read an adapter. Raises UserError, in one sentence, when it cannot be used as it is."""
        place = SentPlace.of(path)
        return self._of_directory(Path(path)) if place is None else self._sent(place)

    def _of_directory(self, directory: Path) -> AdapterContents:
        config: dict[str, Any] = {}
        tensors: dict[str, Tensor] = {}

        def read() -> None:
            config.update(_checked(str(directory / CONFIG), read_json(inside(directory, CONFIG))))
            tensors.update(_tensors_of(directory))

        name = SAFETENSORS if (directory / SAFETENSORS).is_file() else PICKLED
        digest = self._digests.of([directory / CONFIG, directory / name], read, lambda: digest_of(config, tensors))
        return self._contents(str(directory), config, tensors, digest)

    def _sent(self, place: SentPlace) -> AdapterContents:
        header, start = place.header()
        config = _checked(SENT_CONFIG, parse_json(SENT_CONFIG, header.configuration.encode()))
        tensors = sent_tensors(place, header.tensors, start)
        return self._contents(SENT, config, tensors, digest_of(config, tensors))

    def _contents(
        self, path: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor], digest: str
    ) -> AdapterContents:
        """Return what an adapter changes. path: for messages."""
        reading = _Reading(path, config)
        return AdapterContents(
            digest,
            reading.changes(tensors),
            reading.invocation_tokens(),
            ties=bool(config.get("ensure_weight_tying")),
        )


def _checked(path: str, config: Any) -> dict[str, Any]:
    """Return a configuration whose keys are all known. path: for messages. Raises CheckpointError, UserError."""
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: holds a JSON {type(config).__name__}, expected an object.")
    check_keys(path, config)
    return config


def _tensors_of(directory: Path) -> dict[str, Tensor]:
    """Return the tensors next to the configuration. Raises CheckpointError."""
    if (directory / SAFETENSORS).is_file():
        return safetensors_of(inside(directory, SAFETENSORS))
    if (directory / PICKLED).is_file():
        return pickled_tensors_of(inside(directory, PICKLED))
    raise CheckpointError(f"{directory}: has neither {SAFETENSORS} nor {PICKLED}; is the download complete?")


class _Reading:
    """The reading of one adapter. path: for messages."""

    def __init__(self, path: str, config: Mapping[str, Any]) -> None:
        self._path = path
        self._config = config
        self._ranks = compiled(path, "rank_pattern", config.get("rank_pattern"))
        self._targets = Targets(path, config)
        self._alphas = compiled(path, "alpha_pattern", config.get("alpha_pattern"))

    def changes(self, tensors: Mapping[str, Tensor]) -> tuple[ModuleChange, ...]:
        """Return the change of each module, from all tensors."""
        fields: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            module, field = self._place(name)
            if not tensor.is_floating_point():
                raise UserError(
                    f"{self._path}: tensor '{name}' has type {tensor.dtype}, expected floating-point numbers."
                )
            fields.setdefault(module, {})[field] = tensor
        self._targets.check(fields)
        changes = []
        named = self._with_parameters(fields)
        for module, found in sorted(named.items()):
            change = self._change(module, {field: one for field, one in found.items() if field != "tokens"})
            if "tokens" in found:
                change = replace(change, tokens=(self._token_ids(module, len(found["tokens"])), found["tokens"]))
            changes.append(change)
        if changes and not any(_has_effect(change) for change in changes):
            raise UserError(f"{self._path}: lora_alpha is 0, so the adapter changes nothing; expected another number.")
        return tuple(changes)

    def invocation_tokens(self) -> tuple[int, ...]:
        """Return the tokens that activate the adapter. Raises UserError unless they are token ids."""
        tokens = self._config.get("alora_invocation_tokens") or ()
        if not isinstance(tokens, list | tuple) or any(type(token) is not int or token < 0 for token in tokens):
            raise UserError(f"{self._path}: alora_invocation_tokens is {tokens!r:.60}, expected a list of token ids.")
        return tuple(tokens)

    def _place(self, name: str) -> tuple[str, str]:
        """Return the module of a tensor, and the field that it is there."""
        for ending, field in FIELDS.items():
            module = name[len(PREFIX) : -len(ending) - 1]
            is_known = name.startswith(PREFIX) and name.endswith(f".{ending}") and ".lora_" not in module
            if is_known and len(module) <= LONGEST_MODULE:
                return module, field
        raise UserError(
            f"{self._path}: tensor '{name[:LONGEST_MODULE]}' is of no kind that adapters have here; expected {PREFIX}MODULE "
            f"followed by one of {', '.join(FIELDS)}."
        )

    def _with_parameters(self, fields: Mapping[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Return the fields with the names of stacked parameters instead of the modules that hold them.

        peft wraps such a module once for each changed parameter, in the order in which the module defines them, so names
        nest: the tensors of the first one are the innermost.
        """
        targets = names_of(self._path, self._config, "target_parameters")
        levels: dict[str, int] = {}
        for module in fields:
            if module.endswith((".experts", ".experts.base_layer")):
                plain = module.replace(".base_layer", "")
                levels[plain] = max(levels.get(plain, 0), module.count(".base_layer") + 1)
        found: dict[str, dict[str, Tensor]] = {}
        for module, tensors in fields.items():
            plain = module.replace(".base_layer", "")
            if plain not in levels:
                found[module] = tensors
                continue
            names = [name for name in STACKED if any(is_named(f"{plain}.{name}", target) for target in targets)]
            if len(names) != levels[plain]:
                raise UserError(
                    f"{self._path}: {plain} has tensors of {levels[plain]} parameters, but target_parameters names "
                    f"{', '.join(names) or 'none of them'}."
                )
            place = levels[plain] - 1 - module.count(".base_layer")
            found[f"{plain}.{names[place]}"] = tensors
        return found

    def _token_ids(self, module: str, count: int) -> Tensor:
        """Return the tokens whose rows of a module are replaced, int64 [count]. Raises UserError."""
        found = self._config.get("trainable_token_indices")
        if isinstance(found, dict):
            found = next((ids for name, ids in found.items() if is_named(module, name)), None)
        if not isinstance(found, list) or any(type(token) is not int or token < 0 for token in found):
            raise UserError(
                f"{self._path}: trainable_token_indices is {found!r:.60} for {module}, expected a list of token ids."
            )
        if len(found) != count or len(set(found)) != count:
            raise UserError(
                f"{self._path}: trainable_token_indices names {len(found)} tokens, the tensor of {module} has {count} rows."
            )
        return torch.tensor(found, dtype=torch.int64)

    def _change(self, module: str, found: Mapping[str, Tensor]) -> ModuleChange:
        a, b = found.get("a"), found.get("b")
        if (a is None) != (b is None):
            there, missing = ("A", "B") if b is None else ("B", "A")
            raise UserError(f"{self._path}: {module} has a matrix {there} but no {missing}; the file is incomplete.")
        if a is None or b is None:
            if "magnitude" in found or "added_bias" in found:
                raise UserError(
                    f"{self._path}: {module} has vectors of a change but no matrices; the file is incomplete."
                )
            return ModuleChange(module, **found)
        if a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[1]:
            raise UserError(
                f"{self._path}: A and B of {module} have the shapes {list(a.shape)} and {list(b.shape)}, expected [r, K] "
                "and [N, r]."
            )
        self._check_vectors(module, found)
        return ModuleChange(module, scale=self._scale(module, a.shape[0]), **found)

    def _check_vectors(self, module: str, found: Mapping[str, Tensor]) -> None:
        """Raise UserError unless a module has the magnitude and the bias that the configuration says, and not both."""
        if bool(self._config.get("use_dora")) is not ("magnitude" in found):
            raise UserError(
                f"{self._path}: use_dora is {self._config.get('use_dora')}, but {module} has "
                f"{'a' if 'magnitude' in found else 'no'} magnitude."
            )
        if "added_bias" in found and not self._config.get("lora_bias"):
            raise UserError(
                f"{self._path}: lora_bias is {self._config.get('lora_bias')}, but {module} has a bias of B, which peft would "
                "leave out; correct the configuration, or leave the tensor out."
            )
        if "magnitude" in found and "added_bias" in found:
            raise UserError(f"{self._path}: {module} has both a magnitude (DoRA) and a bias of B, which is not served.")

    def _scale(self, module: str, stored: int) -> float:
        """Return the factor of a module's change. stored: rows of its A."""
        rank = self._matched(module, self._ranks, self._config.get("r", 8))
        alpha = self._matched(module, self._alphas, self._config.get("lora_alpha", 8))
        if type(rank) is not int or rank < 1 or not isinstance(alpha, int | float) or not math.isfinite(alpha):
            raise UserError(
                f"{self._path}: rank {rank!r} and alpha {alpha!r} of {module}; expected a rank of at least 1, and a number."
            )
        stacked = module.endswith(STACKED) and ".experts." in module
        if rank != stored and not (stacked and stored % rank == 0):
            raise UserError(f"{self._path}: A of {module} has {stored} rows, but its rank is {rank} by {CONFIG}.")
        return alpha / math.sqrt(rank) if self._config.get("use_rslora") else alpha / rank

    def _matched(self, module: str, patterns: Sequence[tuple[re.Pattern[str], Any]], usual: Any) -> Any:
        return next((value for pattern, value in patterns if pattern.match(module)), usual)


def _has_effect(change: ModuleChange) -> bool:
    """Whether a change is more than a product of matrices times 0."""
    others = (change.magnitude, change.bias, change.weight, change.tokens)
    return change.scale != 0 or any(one is not None for one in others)
