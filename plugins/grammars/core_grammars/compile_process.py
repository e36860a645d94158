"""The helper process that compiles grammars: `python -P -m core_grammars.compile_process FD`.

Owns: the messages between it and its parent, the choice of a backend for each grammar, the limit of memory. Never does:
idle for long, or limit its own time (its parent terminates it).
Called by: `core_grammars.compile_helper`, as a child.

The first message (`core_grammars.helper_process`) is `Start`; then `Job`s go one way and `Answer`s the other, all as msgpack.
Each job is answered by progress messages (loading, or work on the grammar itself), followed by the result.
"""

from __future__ import annotations

import hashlib
import os
import resource
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from io import BufferedRWPair

import msgspec

from core.api.config import ResolvedPlugin
from core.api.errors import CoreError, RequestError
from core.api.structured_outputs import FIELD, CompiledGrammar, GrammarSpec
from core.plugin.hookspecs import LoadContext
from core.plugin.manifest import Manifest, load_manifest
from core.plugin.table import PluginTable
from core.processes import end_with_parent
from core_grammars.contract import GrammarBackend, GrammarVocabulary
from core_grammars.helper_process import Refusal, peak_memory, read_message, write_message
from core_grammars.probe import Probe
from core_grammars.vocabulary import grammar_vocabulary
from core_tokens.tokenizer import Tokenizer, TokenizerSnapshot

NICENESS = 5
IDLE_SECONDS = 600.0
"""Idle seconds after which the process exits; its memory is worth more than a quick next start."""
GROWN_BYTES = 512 << 20
"""Growth beyond the memory of the loaded backends after which the process is replaced."""
MAX_REASONS = 8
"""Limit on the reasons reported per backend."""


class Start(msgspec.Struct, array_like=True):
    """The process's configuration, sent once at its start.

    vocab_size: of the model. stop_ids: tokens that end an answer.
    table: the backends, loaded exactly as selected.
    max_compiled_size: limit in bytes on a compiled grammar. compile_memory: limit in bytes on one compilation.
    stays: whether the process keeps running without a job.
    """

    tokenizer: TokenizerSnapshot
    vocab_size: int
    stop_ids: list[int]
    table: tuple[ResolvedPlugin, ...]
    max_compiled_size: int
    compile_memory: int
    stays: bool = False


class Job(msgspec.Struct, array_like=True):
    """One grammar to compile. backends: names in order; the first one that honours all of it compiles it."""

    spec: GrammarSpec
    backends: tuple[str, ...]


class Answer(msgspec.Struct, array_like=True):
    """The answer to a job; a progress message if neither of the first two fields is set.

    last: the process has grown and should be replaced.
    loading: a backend is being loaded; otherwise the work on the grammar begins.
    """

    compiled: CompiledGrammar | None = None
    refusal: Refusal | None = None
    last: bool = False
    loading: bool = False


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

    stream: to the parent, which is notified when a grammar's time limit starts.
    """

    def __init__(self, start: Start, stream: BufferedRWPair) -> None:
        self._start = start
        self._stream = stream
        self._plugins = PluginTable(start.table)
        self._manifests: dict[str, Manifest] = {}
        self._backends: dict[str, GrammarBackend] = {}
        self.loaded_bytes = peak_memory()

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
        self._send_answer(Answer())

    def _send_answer(self, answer: Answer) -> None:
        write_message(self._stream, msgspec.msgpack.encode(answer))

    def _manifest(self, name: str) -> Manifest:
        if name not in self._manifests:
            self._manifests[name] = load_manifest(self._plugins.row("grammar", name))
        return self._manifests[name]

    def _load(self, name: str) -> None:
        """Load a backend, without limits on time and memory."""
        _limit_memory(None)
        self._send_answer(Answer(loading=True))
        context = LoadContext(options={"vocabulary": self.vocabulary})
        self._backends[name] = self._plugins.load("grammar", name, context)
        self.loaded_bytes = peak_memory()


def serve(connection: socket.socket, stream: BufferedRWPair) -> None:
    """Process jobs until the stream ends. Raises TimeoutError after a long idle time if the process need not stay."""
    start = msgspec.msgpack.decode(read_message(stream), type=Start)
    if start.stays:
        connection.settimeout(None)
    compilation = Compilation(start, stream)
    while payload := read_message(stream):
        answer = compilation.answer(msgspec.msgpack.decode(payload, type=Job))
        answer.last = peak_memory() - compilation.loaded_bytes > GROWN_BYTES
        write_message(stream, msgspec.msgpack.encode(answer))


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
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + extra
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def main() -> int:
    """Entry point of the process."""
    os.nice(NICENESS)
    end_with_parent(int(sys.argv[1]))  # even in the middle of a job
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        connection.settimeout(IDLE_SECONDS)
        with connection.makefile("rwb") as stream:
            try:
                serve(connection, stream)
            except (TimeoutError, BrokenPipeError, ConnectionResetError):
                return 0  # the parent no longer needs this process
    return 0


if __name__ == "__main__":
    sys.exit(main())
