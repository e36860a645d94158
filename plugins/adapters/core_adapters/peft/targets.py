"""Which modules a configuration says are changed, and whether the tensors are of these modules.

Owns: the meaning of `target_modules`, `exclude_modules`, `layers_to_transform`, `layers_pattern`, `modules_to_save`,
`target_parameters` and `trainable_token_indices` as names. peft leaves out tensors of modules that these keys do not name, so
such a tensor is refused here. Never does: read a tensor, or know the model. Called by: the format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from core.api.errors import UserError, nearest
from core_adapters.peft.patterns import ends_soon

FIRST_INDEX: Final = re.compile(r".*?\.[^.]*\.(\d+)\.")
"""The first number in a module's name; a later one is an expert's."""
ALL_LINEAR: Final = "all-linear"

MOST_LAYER_PATTERNS: Final = 16
MOST_SAVED: Final = 256

Named = dict[str, None] | re.Pattern[str]
"""Names of modules, or a pattern. Names may be many, so that each is looked up once."""
Fields = Mapping[str, Mapping[str, object]]
"""The tensors of each module, by field of `ModuleChange`."""


def names_of(path: str, config: Mapping[str, Any], key: str) -> dict[str, None]:
    """Return a list of names, without repeats; empty without the key. path: for messages. Raises UserError."""
    found = config.get(key)
    if found is None:
        return {}
    if not isinstance(found, list | tuple | set | dict) or not all(isinstance(one, str) for one in found):
        raise UserError(f"{path}: {key} is {found!r:.60}, expected a list of names.")
    return dict.fromkeys(found)


def is_named(module: str, name: str) -> bool:
    """Whether a module has a name, or ends with it."""
    return module == name or module.endswith(f".{name}")


class Targets:
    """The modules that a configuration names. path: for messages. Raises UserError for values that peft cannot use."""

    def __init__(self, path: str, config: Mapping[str, Any]) -> None:
        self._path = path
        self._config = config
        self._names = self._named("target_modules")
        self._excluded = self._named("exclude_modules")
        # peft writes the parameters of a family's routers and experts with "all-linear", also those that the model has not
        self._parameters = names_of(path, config, "target_parameters")
        self._layers = self._layer_numbers()
        self._patterns = self._layer_patterns()

    def check(self, fields: Fields) -> None:
        """Check that modules which are named have tensors, and that tensors are of modules which are named."""
        self._check_saved(fields)
        self._check_tokens(fields)
        matrices = [module for module, found in fields.items() if {"a", "b"} & found.keys() and not _is_stacked(module)]
        if isinstance(self._names, dict):
            self._check_names(self._names, fields)
        if self._layers is not None:
            self._check_layers(matrices)
        for module in matrices:
            reason = self._reason(module)
            if reason is not None:
                raise UserError(
                    f"{self._path}: has tensors of {module}, but {reason}, so peft would leave them out; correct the "
                    "configuration, or leave the tensors out."
                )

    def _named(self, key: str) -> Named | None:
        """Return names, or a pattern; None where names of tensors alone say which modules are meant."""
        found = self._config.get(key)
        if found is None or (isinstance(found, str) and found.lower() == ALL_LINEAR):
            return None
        if not isinstance(found, str):
            return names_of(self._path, self._config, key)
        try:
            return re.compile(found) if ends_soon(found) else None
        except (re.error, OverflowError, RecursionError) as error:
            raise UserError(
                f"{self._path}: {key} is '{found[:60]}', which is no regular expression: {error}."
            ) from error

    def _layer_numbers(self) -> frozenset[int] | None:
        """Return the numbers of `layers_to_transform`; None: all layers."""
        found = self._config.get("layers_to_transform")
        if found is None or found == []:
            return None
        numbers = found if isinstance(found, list | tuple) else [found]
        if any(type(number) is not int or number < 0 for number in numbers):
            raise UserError(f"{self._path}: layers_to_transform is {found!r:.60}, expected a list of layers' numbers.")
        if isinstance(self._config.get("target_modules"), str):
            raise UserError(
                f"{self._path}: layers_to_transform is given with a pattern as target_modules, which peft refuses; name the "
                "layers in the pattern."
            )
        return frozenset(numbers)

    def _layer_patterns(self) -> list[re.Pattern[str]]:
        """Return what `layers_pattern` says a layer's number follows; empty: any name."""
        found = self._config.get("layers_pattern") or []
        if found and self._layers is None:
            raise UserError(f"{self._path}: layers_pattern is given without layers_to_transform, which peft refuses.")
        found = [found] if isinstance(found, str) else found
        is_list = isinstance(found, list) and len(found) <= MOST_LAYER_PATTERNS
        if not is_list or not all(isinstance(one, str) and ends_soon(one) for one in found):
            raise UserError(f"{self._path}: layers_pattern is {found!r:.60}, expected a name such as 'layers'.")
        try:
            return [re.compile(rf"(?:^|.*?\.)(?:{one})\.(\d+)\.") for one in found]
        except (re.error, OverflowError, RecursionError) as error:
            raise UserError(
                f"{self._path}: layers_pattern is {found!r:.60}, no regular expression: {error}."
            ) from error

    def _layer(self, module: str) -> int | None:
        """Return the number of a module's layer."""
        matches = (pattern.match(module) for pattern in self._patterns or [FIRST_INDEX])
        number = next((match.group(1) for match in matches if match), None)
        return None if number is None else int(number)

    def _reason(self, module: str) -> str | None:
        """Return why peft would leave out the matrices of a module; None if it uses them."""
        if _is_one_of(f"{module}.weight", self._parameters):
            return None  # a router is no linear layer, so that its parameter is named
        if self._excluded and _is_one_of(module, self._excluded):
            return "exclude_modules names it"
        if self._names is None:
            return None
        if self._config.get("ensure_weight_tying") and self._layer(module) is None:
            return None  # a head that is tied to an embedding is changed although only one of the two is named
        if not _is_one_of(module, self._names):
            return "target_modules does not name it"
        if self._layers is None or isinstance(self._names, re.Pattern) or module in self._names:
            # a whole name counts whatever its layer
            return None
        return None if self._layer(module) in self._layers else "layers_to_transform leaves its layer out"

    def _check_names(self, names: Mapping[str, None], fields: Fields) -> None:
        if not fields:
            return  # an adapter that changes nothing has a sentence of its own
        endings = {ending for module in fields for ending in _endings(module)}
        for name in names:
            if name not in endings:
                known = sorted({module.rpartition(".")[2] for module in fields})
                raise UserError(
                    f"{self._path}: target_modules names '{name}', but there is no tensor of such a module; there are "
                    f"tensors of {', '.join(known)}.{nearest(name, known)}"
                )

    def _check_layers(self, matrices: Sequence[str]) -> None:
        known = {layer for module in matrices if (layer := self._layer(module)) is not None}
        missing = sorted((self._layers or frozenset()) - known)
        if missing:
            raise UserError(
                f"{self._path}: layers_to_transform names layer {missing[0]}, but there is no tensor of such a layer; there "
                f"are tensors of layers {', '.join(map(str, sorted(known))) or '(none)'}."
            )

    def _check_saved(self, fields: Fields) -> None:
        names = names_of(self._path, self._config, "modules_to_save")
        # peft itself adds `classifier` and `score` for models with classes, which have one of them.
        if len(names) > MOST_SAVED:
            raise UserError(f"{self._path}: modules_to_save has {len(names)} names, expected at most {MOST_SAVED}.")
        if names and not any(f".{name}." in f".{module}." for module in fields for name in names):
            raise UserError(
                f"{self._path}: modules_to_save names {', '.join(names)}, but there is no tensor of such a module."
            )

    def _check_tokens(self, fields: Fields) -> None:
        found = self._config.get("trainable_token_indices")
        if found in (None, {}):
            return
        if not any("tokens" in each for each in fields.values()):
            raise UserError(
                f"{self._path}: trainable_token_indices is {found!r:.60}, but there is no tensor with rows of tokens; the file "
                "is incomplete."
            )


def _is_stacked(module: str) -> bool:
    """Whether a module holds all experts of a layer, whose parameters `target_parameters` names."""
    return module.replace(".base_layer", "").endswith(".experts")


def _is_one_of(module: str, names: Named) -> bool:
    if isinstance(names, re.Pattern):
        return names.fullmatch(module) is not None
    return any(ending in names for ending in _endings(module))


def _endings(module: str) -> Iterator[str]:
    """Yield a module's name, and what follows each of its dots."""
    while module:
        yield module
        module = module.partition(".")[2]
