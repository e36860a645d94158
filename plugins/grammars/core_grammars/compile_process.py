"""The helper process that compiles grammars (`core_supervision.helpers`).

Owns: the messages between it and its parent, the choice of a backend for each grammar, the limit of memory. Never does:
limit its own time (its parent terminates it). Called by: `core_grammars.compile_helper`, as a child.

The first message is `Start`; then `Job`s go one way and `Answer`s the other, all as msgpack. While it works on a job, the
process reports whether it loads a backend or works on the grammar itself.
"""

from __future__ import annotations

import hashlib
import resource
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import msgspec

from core.api.config import ResolvedPlugin
from core.api.errors import CoreError, RequestError
from core.api.structured_outputs import FIELD, CompiledGrammar, GrammarSpec
from core.plugin.hookspecs import LoadContext
from core.plugin.manifest import Manifest, load_manifest
from core.plugin.table import PluginTable
from core_grammars.contract import GrammarBackend, GrammarVocabulary
from core_grammars.probe import Probe
from core_grammars.vocabulary import grammar_vocabulary
from core_supervision.helpers.child import Parent, address_space, run
from core_supervision.helpers.messages import Mark, Refusal
from core_tokens.tokenizer import Tokenizer, TokenizerSnapshot

GROWN_BYTES = 512 << 20
"""Growth beyond the memory of the loaded backends after which the process is replaced."""
MAX_REASONS = 8
"""Limit on the reasons reported per backend."""


class Start(msgspec.Struct, array_like=True):
    """The process's configuration, sent once at its start.

    vocab_size: of the model. stop_ids: tokens that end an answer.
    table: the backends, loaded exactly as selected.
    max_compiled_size: limit in bytes on a compiled grammar. compile_memory: limit in bytes on one compilation.
    """

    tokenizer: TokenizerSnapshot
    vocab_size: int
    stop_ids: list[int]
    table: tuple[ResolvedPlugin, ...]
    max_compiled_size: int
    compile_memory: int


class Job(msgspec.Struct, array_like=True):
    """One grammar to compile. backends: names in order; the first one that honours all of it compiles it."""

    spec: GrammarSpec
    backends: tuple[str, ...]


class Answer(msgspec.Struct, array_like=True):
    """The answer to a job: a grammar, or the reasons why there is none."""

    compiled: CompiledGrammar | None
    refusal: Refusal | None = None


class Losses:
    """The reasons why backends reject a grammar."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}
        self._details: list[str] = []
        self._code: str | None = None

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Turn any exception of a backend inside the context into a reason."""
        try:
            yield
        except RequestError as error:
            self._lose(name, _plain(error))
        except MemoryError:
            self._code = "too_much_work"
            self._lose(name, "it takes more memory than allowed (--structured-outputs-config.compile-memory)")
        except CoreError as error:
            self._lose(name, _plain(error), str(error))
        except Exception as error:
            self._lose(name, f"it failed ({type(error).__name__})", traceback.format_exc())

    def refusal(self, spec: GrammarSpec) -> Refusal:
        """Return all reasons in one sentence. Code and details are empty if the same grammar is always rejected."""
        what = spec.kind.replace("_", " ")
        losses = "; ".join(f"{', '.join(names)}: {why}" for why, names in self._names.items())
        sentence = f"{FIELD} cannot be served: no backend takes this {what}. {losses}."
        return Refusal(sentence, FIELD, 400, self._code, "\n".join(self._details))

    def _lose(self, name: str, why: str, details: str = "") -> None:
        self._names.setdefault(why, []).append(name)
        if details:
            self._details.append(details)


class Compilation:
    """The backends of one process, loaded on first use.

    parent: notified when a grammar's time limit starts.
    """

    def __init__(self, start: Start, parent: Parent) -> None:
        self._start = start
        self._parent = parent
        self._plugins = PluginTable(start.table)
        self._manifests: dict[str, Manifest] = {}
        self._backends: dict[str, GrammarBackend] = {}

    @cached_property
    def vocabulary(self) -> GrammarVocabulary:
        """Return the served model's vocabulary."""
        tokenizer = Tokenizer.restore(self._start.tokenizer)
        return grammar_vocabulary(tokenizer, self._start.vocab_size, self._start.stop_ids)

    @cached_property
    def _probe(self) -> Probe:
        """Return the probe for compiled grammars."""
        return Probe(self.vocabulary)

    def answer(self, job: Job) -> Answer:
        """Return the compiled grammar, or the reasons why there is none. All backends are queried before any is loaded,
        which may take seconds.
        """
        losses = Losses()
        willing: list[str] = []
        for name in job.backends:
            with losses.of(name):
                self._ask(name, job.spec)
                willing.append(name)
        for name in willing:
            with losses.of(name):
                return Answer(self._compiled(name, job.spec))
        return Answer(None, losses.refusal(job.spec))

    def _ask(self, name: str, spec: GrammarSpec) -> None:
        """Raise RequestError for anything a backend does not honour, and any exception of a broken backend."""
        manifest = self._manifest(name)
        self._begin()
        reasons = manifest.call("core_supports", query=spec)
        if reasons:
            raise RequestError(_joined([str(reason) for reason in reasons]))

    def _compiled(self, name: str, spec: GrammarSpec) -> CompiledGrammar:
        """Compile with one backend. Raises RequestError, and any exception of a broken backend."""
        if name not in self._backends:
            self._load(name)
        self._begin()
        backend = self._backends[name]
        data = backend.compile(spec)
        most = self._start.max_compiled_size
        if len(data) > most:
            raise RequestError(
                f"its compiled form has {len(data)} bytes, at most {most} are taken "
                "(--structured-outputs-config.max-compiled-size)"
            )
        self._probe.run(backend, data)
        return CompiledGrammar(name, _key(spec, name, self.vocabulary.digest), data)

    def _begin(self) -> None:
        """Notify the parent that the time limit starts, and start the memory limit."""
        _limit_memory(self._start.compile_memory)
        self._parent.tell(Mark.WORKING)

    def _manifest(self, name: str) -> Manifest:
        if name not in self._manifests:
            self._manifests[name] = load_manifest(self._plugins.row("grammar", name))
        return self._manifests[name]

    def _load(self, name: str) -> None:
        """Load a backend, without limits on time and memory."""
        _limit_memory(None)
        self._parent.tell(Mark.LOADING)
        context = LoadContext(options={"vocabulary": self.vocabulary})
        self._backends[name] = self._plugins.load("grammar", name, context)
        self._parent.settle()


def serve(parent: Parent) -> None:
    """Compile grammars until the parent hangs up, or this process has grown."""
    parent.settle()  # it is no request's first wait: the engine's threads come before all of this
    compilation = Compilation(parent.first(Start), parent)
    parent.serve(lambda payload: (compilation.answer(msgspec.msgpack.decode(payload, type=Job)), False))


def _key(spec: GrammarSpec, backend: str, vocabulary: str) -> str:
    whole = msgspec.msgpack.encode((spec, backend, vocabulary))
    return hashlib.sha256(whole).hexdigest()


def _joined(reasons: Sequence[str]) -> str:
    told = "; ".join(reasons[:MAX_REASONS])
    more = len(reasons) - MAX_REASONS
    return f"{told}; and {more} more" if more > 0 else told


def _plain(error: CoreError) -> str:
    """Format an error for a list."""
    return str(error).rstrip(".")


def _limit_memory(extra: int | None) -> None:
    """Limit this process to `extra` bytes more than it uses now; None: no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if extra is None:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        return
    most = address_space() + extra
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


if __name__ == "__main__":
    sys.exit(run(serve, GROWN_BYTES))
