"""Mapping of the names of a checkpoint's tensors to the names of a model's modules.

Owns: transformers' own mapping (`conversion_mapping`), read for names, and the conversion of gathered tensors.
Never does: read a file. Called by: the description, the loading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from core.api.errors import CheckpointError


class Names:
    """The names of one model.

    renamed: checkpoint name → model name, for tensors whose names differ.
    gathered: checkpoint name → first model name, for tensors of which several become one or more.
    """

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

        self._model = model
        known = dict(model.state_dict(keep_vars=True))
        mapping = get_model_conversion_mapping(model)
        renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
        converters = [one for one in mapping if isinstance(one, WeightConverter)]
        self._converters = {pattern: one for one in converters for pattern in one.source_patterns}
        self._patterns: dict[str, str] = {}
        self.renamed: dict[str, str] = {}
        self.gathered: dict[str, str] = {}
        prefix = str(getattr(model, "base_model_prefix", ""))
        for name in names:
            found, pattern = rename_source_key(name, renamings, converters, prefix, known)
            if found not in known and name in known:
                found = name
                pattern = None
            if pattern is not None and found in known:
                self.gathered[name] = found
                self._patterns[name] = pattern
            elif found != name:
                self.renamed[name] = found

    def targets(self) -> set[str]:
        """Return every tensor of the model that gathered tensors become."""
        found: set[str] = set()
        for name, target in self.gathered.items():
            patterns = self._converters[self._patterns[name]].target_patterns
            for pattern in patterns:
                found.add(target.replace(patterns[0], pattern))
        return found

    def convert(self, target: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the model's tensors, by name, that the gathered tensors of `target` become. All of the latter must be
        given.

        Raises CheckpointError when they do not fit.
        """
        from transformers.core_model_loading import dot_natural_key

        ordered = sorted(tensors, key=dot_natural_key)
        converter: Any = deepcopy(self._converters[self._patterns[ordered[0]]])
        for name in ordered:
            converter.add_tensor(target, name, self._patterns[name], tensors[name])
        try:
            made = converter.convert(target, model=self._model, config=self._model.config)
        except Exception as error:
            raise CheckpointError(
                f"{target}: {len(ordered)} tensors of the checkpoint, {ordered[0]} first, do not become one as "
                f"transformers' conversion says: {type(error).__name__}: {error}"
            ) from error
        found: dict[str, Tensor] = {}
        for name, tensor in made.items():
            found[name] = tensor[0] if isinstance(tensor, list) else tensor
        return found
