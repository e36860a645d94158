"""Grammars are compiled once, beside everybody else's work, and within limits."""

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from core.api.config import StructuredOutputsConfig
from core.api.errors import EngineDeadError, RequestError
from core.api.structured_outputs import CompiledGrammar, GrammarSpec, StructuredOutputsParams
from core_config.resolve import resolve
from core_grammars import compile_helper, compile_process
from core_grammars.compile_helper import CompileHelper
from core_grammars.compile_queue import MAX_WAITING_OF_TENANT, CompileQueue
from core_grammars.compiler import GrammarCompiler
from core_supervision.helpers.messages import Mark
from core_tokens.tokenizer import Tokenizer
from tests.tiny_models import byte_tokenizer

FILE = Path(__file__).parent / "scripted_backend.py"
LIMITS = StructuredOutputsConfig(
    compile_timeout=1.0, compile_memory=256 << 20, max_compiled_size=10_000, cache_size=20_000
)


def asked(text, **more):
    return StructuredOutputsParams(regex=text, **more)


@pytest.fixture(scope="module")
def config(tiny_llama):
    """With the scripted plugin before the engine's own."""
    arguments = {"model": str(tiny_llama), "plugins": f"./{os.path.relpath(FILE)},no:xgrammar"}
    return msgspec.structs.replace(resolve(arguments, context="llm").engine, structured_outputs=LIMITS)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(byte_tokenizer())


@pytest.fixture(scope="module")
def compiler(config, tokenizer):
    made = GrammarCompiler(config, tokenizer)
    with ThreadPoolExecutor() as threads:  # both helpers are there then
        list(threads.map(made.compile, [asked("sleep 0.2"), asked("sleep 0.21")]))
    yield made
    made.close()


def refusal(compiler, text, **more):
    with pytest.raises(RequestError) as caught:
        compiler.compile(asked(text, **more))
    assert caught.value.param == "structured_outputs"
    return str(caught.value)


def test_the_same_grammar_is_compiled_once(compiler):
    first = compiler.compile(asked("a"))
    assert first.backend == "scripted" and first.data.endswith(b" a")
    assert compiler.compile(asked("a")) is first
    assert compiler.compile(asked("b")).key != first.key


async def test_concurrent_requests_share_one_compilation(compiler):
    found = await asyncio.gather(*[compiler.compiled(asked("shared")) for _ in range(20)])
    assert all(one is found[0] for one in found)


async def test_who_leaves_does_not_end_it_for_others(compiler):
    leaving = asyncio.ensure_future(compiler.compiled(asked("left")))
    staying = asyncio.ensure_future(compiler.compiled(asked("left")))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).data.endswith(b" left")


async def test_a_grammar_that_hangs_holds_up_nobody(compiler):
    hanging = asyncio.ensure_future(compiler.compiled(asked("hang")))
    await asyncio.sleep(0.05)
    assert (await compiler.compiled(asked("other"))).data.endswith(b" other")
    assert not hanging.done()
    with pytest.raises(RequestError, match=r"within 1 s \(--structured-outputs-config.compile-timeout\)"):
        await hanging


def test_tenants_take_turns_and_places_of_their_own():
    queue = CompileQueue(2)
    for number in range(MAX_WAITING_OF_TENANT):
        queue.put("ann", b"a%d" % number)
    with pytest.raises(RequestError) as caught:
        queue.put("ann", b"more")
    assert (caught.value.status, caught.value.retry_after) == (429, 2)
    for key in (b"b0", b"a3"):
        queue.put("bob", key)
    taken = [queue.take() for _ in range(3)]
    assert taken == [("ann", b"a0"), ("bob", b"b0"), None], "ann has one helper at most, and so has bob"
    queue.done("bob")
    assert queue.take() == ("bob", b"a3"), "what ann has in her line does not wait for her turn"
    queue.done("ann")
    assert [queue.take(), queue.take()] == [("ann", b"a1"), None]
    queue.done("ann")
    queue.done("bob")
    assert [queue.take(), queue.take()] == [("ann", b"a2"), None]
    queue.done("ann")
    assert queue.take() == ("ann", b"a4"), "a3 was taken for bob"


def test_a_tenant_alone_has_all_helpers():
    queue = CompileQueue(2)
    for key in (b"1", b"2"):
        queue.put("ann", key)
    assert [queue.take(), queue.take()] == [("ann", b"1"), ("ann", b"2")]


async def test_heavy_grammars_of_one_tenant_do_not_hold_up_another(compiler):
    await compiler.compiled(asked("first of ann"), "ann")
    await compiler.compiled(asked("first of bob"), "bob")
    heavy = [asyncio.ensure_future(compiler.compiled(asked(f"sleep 0.1{n}"), "ann")) for n in range(6)]
    await asyncio.sleep(0)
    assert (await compiler.compiled(asked("light"), "bob")).data.endswith(b" light")
    assert sum(one.done() for one in heavy) <= 1
    await asyncio.gather(*heavy)


async def test_closing_ends_what_waits(config, tokenizer):
    made = GrammarCompiler(config, tokenizer)
    await made.compiled(asked("a helper is there"))
    waiting = [asyncio.ensure_future(made.compiled(asked(f"sleep 0.5{n}"))) for n in range(6)]
    await asyncio.sleep(0)
    await asyncio.to_thread(made.close)
    assert all(isinstance(error, Exception) for error in await asyncio.gather(*waiting, return_exceptions=True))


def test_limits_are_sentences_and_the_next_grammar_is_served(compiler):
    assert "--structured-outputs-config.compile-memory" in refusal(compiler, "memory", disable_fallback=True)
    said = refusal(compiler, "crash")
    assert "signal 6" in said and "--structured-outputs-config.compile-memory" in said
    said = refusal(compiler, "large 10001", disable_fallback=True)
    assert "10001 bytes, at most 10000" in said and "--structured-outputs-config.max-compiled-size" in said
    assert compiler.compile(asked("large 10000")).data == b"x" * 10_000


def test_another_backend_takes_over_unless_it_may_not(compiler):
    assert compiler.compile(asked("unsupported")).backend != "scripted"
    assert "scripted: /properties/a: not" in refusal(compiler, "unsupported", disable_fallback=True)
    assert compiler.compile(asked("wrong")).backend != "scripted"
    assert "there is no sense in it" in refusal(compiler, "wrong", backend="scripted", disable_fallback=True)
    assert "failed (ZeroDivisionError)" in refusal(compiler, "bug", disable_fallback=True)


def test_when_nobody_takes_it_all_say_why(compiler):
    said = refusal(compiler, "wrong (")
    assert "scripted: there is no sense in it" in said and "llguidance: " in said


def test_a_refusal_is_remembered_but_not_a_failure(compiler, monkeypatch):
    asked_for = []
    plain = CompileHelper.compiled
    monkeypatch.setattr(CompileHelper, "compiled", lambda self, job: asked_for.append(job) or plain(self, job))
    words = [refusal(compiler, "wrong again", disable_fallback=True) for _ in range(3)]
    assert len(asked_for) == 1 and len(set(words)) == 1
    for _ in range(2):
        assert "failed" in refusal(compiler, "bug again", disable_fallback=True)
    assert len(asked_for) == 3


class Told:
    """A parent that keeps what it is told."""

    def __init__(self):
        self.marks = []
        self.tell = self.marks.append

    def settle(self):
        pass


def test_nothing_is_loaded_for_a_grammar_that_all_refuse_by_name(config, tokenizer, monkeypatch):
    monkeypatch.setattr(compile_process, "_limit_memory", lambda extra: None)
    table = tuple(row for row in config.plugins.table if row.kind == "grammar")
    start = compile_process.Start(tokenizer.snapshot, 300, [256], table, 10_000, 1 << 30)
    for kind, text, loads in (("json_schema", '{"contains":{}}', 0), ("regex", "unsupported", 1)):
        told = Told()
        answer = compile_process.Compilation(start, told).answer(
            compile_process.Job(GrammarSpec(kind, text), ("scripted", "llguidance"))
        )
        assert told.marks.count(Mark.LOADING) == loads
        assert (answer.compiled is None) == (loads == 0)


def test_a_helper_is_there_before_the_first_grammar_where_that_is_wanted(config, tokenizer, monkeypatch):
    made_for = []
    monkeypatch.setattr(
        CompileHelper, "compiled", lambda self, job: made_for.append(job) or CompiledGrammar("a", "b", b"")
    )
    for wanted in (False, True):
        limits = msgspec.structs.replace(LIMITS, warm=wanted)
        compiler = GrammarCompiler(msgspec.structs.replace(config, structured_outputs=limits), tokenizer)
        compiler.warm()
        compiler.close()
    assert [job.spec.kind for job in made_for] == ["json_object"]
    without = msgspec.structs.replace(config.plugins, grammars=())
    bare = GrammarCompiler(msgspec.structs.replace(config, structured_outputs=limits, plugins=without), tokenizer)
    bare.warm()
    bare.close()


@pytest.mark.parametrize("stays", [False, True])
def test_an_idle_process_ends_unless_it_has_to_stay(config, tokenizer, monkeypatch, stays):
    monkeypatch.setattr(compile_helper, "IDLE_SECONDS", 0.01)
    compiler = GrammarCompiler(
        msgspec.structs.replace(config, structured_outputs=msgspec.structs.replace(LIMITS, warm=stays)), tokenizer
    )
    first, _, _ = compiler.compile(asked("who")).data.partition(b" ")
    deadline = time.monotonic() + (0.2 if stays else 30)
    while Path(f"/proc/{int(first)}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    second, _, _ = compiler.compile(asked("who else")).data.partition(b" ")
    assert (second == first) == stays
    compiler.close()


def test_names_of_backends(compiler):
    assert compiler.compile(asked("named", backend="guidance")).backend == "llguidance"
    said = refusal(compiler, "named", backend="llguidence")
    assert "Did you mean 'llguidance'?" in said


def is_running(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # another thread may wait for the process at any moment
        return False


def test_a_process_that_has_ended_is_started_again(compiler):
    number, _, _ = compiler.compile(asked("who")).data.partition(b" ")
    os.kill(int(number), 9)
    deadline = time.monotonic() + 5
    while is_running(int(number)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert compiler.compile(asked("who else")).data.endswith(b" who else")


def test_the_cache_is_bounded(compiler):
    first = compiler.compile(asked("large 9000"))
    compiler.compile(asked("large 9001"))
    assert compiler.compile(asked("large 9000")) is first
    for size in (9002, 9003):
        compiler.compile(asked(f"large {size}"))
    assert compiler.compile(asked("large 9000")) is not first


def test_who_waits_hears_of_a_helper_that_cannot_start(config, tokenizer, monkeypatch):
    def full(self, start, timeout, stays):
        raise OSError("no more processes")

    compiler = GrammarCompiler(config, tokenizer)
    with monkeypatch.context() as patched:
        patched.setattr(CompileHelper, "__init__", full)
        with pytest.raises(OSError, match="no more processes"):
            compiler.compile(asked("first"))
    assert compiler.compile(asked("first")).data.endswith(b" first")
    compiler.close()


def test_without_a_tokenizer_or_after_the_end(config, tokenizer):
    for absent in (None, Tokenizer.absent()):
        with pytest.raises(RequestError, match="needs a tokenizer"):
            GrammarCompiler(config, absent).compile(asked("a"))
    closed = GrammarCompiler(config, tokenizer)
    closed.close()
    with pytest.raises(EngineDeadError):
        closed.compile(asked("a"))
