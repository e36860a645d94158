"""The grammar plugins, asked as the compiling process and the worker ask them: what they honour, which texts they let through.

Owns: their use without either process. Never does: judge a schema. Called by: the tests of the tables, `tests.grammars.prove`.
"""

import importlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.api.errors import RequestError
from core.api.reason import Reason
from core.api.structured_outputs import GrammarSpec
from core.plugin.hookspecs import LoadContext
from core_grammars.contract import GrammarBackend, GrammarVocabulary
from core_grammars.honoured import HonouredTable, read_table
from core_kit.fixtures.grammar_vocabulary import STOP
from core_kit.fixtures.grammar_vocabulary import vocabulary as bytes_vocabulary

NAMES = ("llguidance", "xgrammar")
"""In the order in which `auto` asks them."""

Accepts = Callable[[str], bool]


class Refused(Exception):
    """The backend refuses what its manifest says it honours."""


def manifest(name: str) -> Any:
    """The hooks of a plugin."""
    return importlib.import_module(f"core_grammars.{name}.manifest")


@cache
def table(name: str) -> HonouredTable:
    """What a plugin says it honours."""
    folder = importlib.import_module(f"core_grammars.{name}").__path__[0]
    return read_table(Path(folder) / "honoured.toml")


def reasons(name: str, spec: GrammarSpec) -> list[Reason]:
    """What a plugin has against a specification."""
    found: list[Reason] = manifest(name).core_supports(query=spec)
    return found


def spec_of(schema: Any) -> GrammarSpec:
    """A schema as requests give it."""
    return GrammarSpec("json_schema", json.dumps(schema))


def load(name: str, vocabulary: GrammarVocabulary) -> GrammarBackend:
    """A plugin's backend."""
    backend: GrammarBackend = manifest(name).core_load(LoadContext(options={"vocabulary": vocabulary}))
    return backend


@cache
def of_bytes(name: str) -> GrammarBackend:
    """A backend whose tokens are bytes."""
    return load(name, bytes_vocabulary())


def compiled(backend: GrammarBackend, spec: GrammarSpec) -> bytes:
    """Raises Refused."""
    try:
        return backend.compile(spec)
    except RequestError as error:
        raise Refused(str(error)) from error


def acceptor(name: str, spec: GrammarSpec) -> Accepts:
    """Whether a text is let through, byte by byte, and may end there. Raises Refused."""
    backend = of_bytes(name)
    data = compiled(backend, spec)

    def accepts(text: str) -> bool:
        matcher = backend.matcher(data)
        return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(STOP)

    return accepts


class Constrained:
    """One answer under a grammar."""

    def __init__(self, backend: GrammarBackend, vocabulary: GrammarVocabulary, spec: GrammarSpec) -> None:
        """Compile. Raises Refused."""
        self._size = len(vocabulary.tokens)
        self._words = np.zeros((self._size + 31) // 32, np.int32)
        self._matcher = backend.matcher(compiled(backend, spec))

    def allowed(self) -> NDArray[np.int64]:
        """Ids of the tokens that may come, in order."""
        if not self._matcher.fill(self._words):
            return np.arange(self._size)
        return np.flatnonzero(np.unpackbits(self._words.view(np.uint8), bitorder="little"))

    def accept(self, token: int) -> bool:
        return self._matcher.accept(token)
