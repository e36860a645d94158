"""Reader of pickles as plain records: calls in a pickle are recorded, and never made.

Owns: the few pickle instructions that torch writes for tensors. Never does: import or run anything that a pickle names.
Called by: `core_runtime.weights.torch_files`.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from typing import Any, NamedTuple

from core.api.errors import CheckpointError

VALUES = frozenset(
    {"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE8"}
)
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
UNSEEN = frozenset({"PROTO", "FRAME"})
MARK = object()
MOST_FIELDS = 16
"""Maximum fields in the name of a storage; torch writes five."""
LONGEST_SHOWN = 100
"""Maximum characters of a name that an error repeats."""


class Global(NamedTuple):
    """The name of an object that a pickle wants to import. It is not imported."""

    name: str


class Call(NamedTuple):
    """A call that a pickle requests. It is not made."""

    function: str
    arguments: tuple[Any, ...]


class Storage(NamedTuple):
    """A persistent id, which torch uses for storages: `("storage", type, key, device, elements)`."""

    fields: tuple[Any, ...]


def read_records(path: str, data: bytes, known: frozenset[str]) -> Any:
    """Return the value of a pickle: dicts, lists, tuples, plain values, `Call` and `Storage`.

    path: file name, for errors.
    known: names that may be imported; a pickle with any other name is refused.
    Raises CheckpointError for a pickle with any other instruction, or a damaged one.
    """
    try:
        return _Machine(path, known).run(pickletools.genops(data))
    except CheckpointError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: its pickle is damaged ({str(error)[:LONGEST_SHOWN]}).") from None


class _Machine:
    """Interpreter of pickle instructions, with a stack and a memo. path: file name, for errors."""

    def __init__(self, path: str, known: frozenset[str]) -> None:
        self._path = path
        self._known = known
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, instructions: Iterator[tuple[pickletools.OpcodeInfo, Any, int | None]]) -> Any:
        for opcode, argument, _ in instructions:
            name = opcode.name
            if name == "STOP":
                return self._stack.pop()
            if name in VALUES:
                self._stack.append(argument)
            elif name in CONSTANTS:
                self._stack.append(CONSTANTS[name])
            elif name not in UNSEEN and not (self._remember(name, argument) or self._build(name)):
                self._name(name, argument)
        raise ValueError("it has no end")

    def _remember(self, name: str, argument: Any) -> bool:
        """Run an instruction about the memo. Returns whether `name` is one."""
        match name:
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = self._stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._stack[-1]
            case "BINGET" | "LONG_BINGET":
                self._stack.append(self._memo[argument])
            case _:
                return False
        return True

    def _build(self, name: str) -> bool:
        """Run an instruction that builds containers. Returns whether `name` is one."""
        stack = self._stack
        match name:
            case "MARK":
                stack.append(MARK)
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE":
                items = self._marked()
                stack.append(tuple(items))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = self._popped(TUPLES[name])
                stack.append(tuple(items))
            case "APPEND":
                items = self._popped(1)
                stack[-1].extend(items)
            case "APPENDS":
                items = self._marked()
                stack[-1].extend(items)
            case "SETITEM":
                items = self._popped(2)
                self._put(items)
            case "SETITEMS":
                items = self._marked()
                self._put(items)
            case _:
                return False
        return True

    def _name(self, name: str, argument: Any) -> None:
        """Run an instruction that names, calls or changes an object."""
        stack = self._stack
        match name:
            case "GLOBAL":
                self._global(argument.replace(" ", "."))
            case "STACK_GLOBAL":
                module, attribute = self._popped(2)
                if not isinstance(module, str) or not isinstance(attribute, str):
                    # The value is not shown: the text of tuples that share their parts can grow without limit.
                    raise TypeError("it imports what is no name")
                self._global(f"{module}.{attribute}")
            case "BINPERSID":
                (fields,) = self._popped(1)
                if not isinstance(fields, tuple) or len(fields) > MOST_FIELDS:
                    raise TypeError("it names a storage as torch never does")
                stack.append(Storage(fields))
            case "REDUCE":
                function, arguments = self._popped(2)
                stack.append(self._call(function, arguments))
            case "BUILD":  # further attributes of a dictionary, such as the versions of modules
                stack.pop()
            case _:
                raise CheckpointError(
                    f"{self._path}: its pickle has the instruction {name}, which no file of tensors needs. Nothing of it was "
                    "run; use a safetensors file."
                )

    def _global(self, name: str) -> None:
        if name not in self._known:
            shown = name[:LONGEST_SHOWN]
            raise CheckpointError(
                f"{self._path}: its pickle wants to import '{shown}', which no file of tensors needs. Nothing of it was run; "
                "use a safetensors file, or save the tensors alone with torch.save(model.state_dict(), ...)."
            )
        self._stack.append(Global(name))

    def _call(self, function: Any, arguments: Any) -> Any:
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise TypeError("it calls what is no function")
        if function.name == "collections.OrderedDict":
            if arguments:
                raise TypeError("it makes a dictionary as torch never does")
            return {}
        return Call(function.name, arguments)

    def _put(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise TypeError("it puts items into what is no dictionary")
        keys = items[0::2]
        values = items[1::2]
        for key, value in zip(keys, values, strict=True):
            if not isinstance(key, str | int):  # hashing nested tuples can take exponential time
                raise TypeError(f"a dictionary has a key of type {type(key).__name__}")
            if key in target:
                raise CheckpointError(
                    f"{self._path}: '{str(key)[:LONGEST_SHOWN]}' is there twice. The file is damaged."
                )
            target[key] = value

    def _popped(self, count: int) -> list[Any]:
        """Remove the last `count` values from the stack and return them."""
        items = self._stack[-count:]
        if len(items) < count or any(item is MARK for item in items):
            raise IndexError("a value is missing")
        del self._stack[-count:]
        return items

    def _marked(self) -> list[Any]:
        """Remove the values since the last mark from the stack, with the mark, and return them."""
        items: list[Any] = []
        while (item := self._stack.pop()) is not MARK:
            items.append(item)
        items.reverse()
        return items
