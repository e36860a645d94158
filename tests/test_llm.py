"""The offline class on a model that follows a formula: order, parameters, errors before anything runs, clean ends."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from engine import fakes
from engine.fakes import FakeExecutor, make_config, make_resolution, reference

import core
from core import LLM, RequestOutput, SamplingParams
from core.api.errors import ConfigError, EngineDeadError, RequestError
from core.api.step_plan import StepPlan, StepResult
from core.api.structured_outputs import CompiledGrammar
from core_frontend.api.explanation import ControlText, SamplingValue
from core_grammars.compiler import GrammarCompiler
from tests.inside import core_of
from tests.torch_free import run_torch_free

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)


class Maker:
    """Builds an LLM on the fake executor, and remembers what it was built with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.executors: list[FakeExecutor] = []
        self.arguments: dict[str, Any] = {}
        self._monkeypatch = monkeypatch

    def __call__(self, *, template: str | None = TEMPLATE, script: str | None = None, **model: Any) -> LLM:
        options = {"script": script, "num_blocks": 1024} if script else {}
        resolution = make_resolution(make_config(options=options, **model), template)
        resolution.warnings = []

        def resolve(arguments: dict[str, Any], *, context: str) -> Any:
            assert context == "llm"
            self.arguments = arguments
            return resolution

        def executor(config: Any) -> FakeExecutor:
            self.executors.append(FakeExecutor(config))
            return self.executors[-1]

        module = ModuleType("core_config.resolve")
        vars(module)["resolve"] = resolve
        self._monkeypatch.setitem(sys.modules, "core_config.resolve", module)
        self._monkeypatch.setattr(fakes, "FakeExecutor", executor)
        return LLM("some/model", max_num_seqs=3)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Maker]:
    yield Maker(monkeypatch)


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def test_arguments_go_to_the_configuration(make: Maker) -> None:
    make()
    assert make.arguments == {"model": "some/model", "max_num_seqs": 3}


def test_outputs_come_in_the_order_of_the_prompts(make: Maker) -> None:
    llm = make()
    prompts = [f"prompt {'x' * (index % 5)} {index}" for index in range(20)]
    params = [SamplingParams(max_tokens=1 + (7 * index) % 11) for index in range(20)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert tokens(outputs) == [
        reference(list(prompt.encode()), one.max_tokens or 0) for prompt, one in zip(prompts, params, strict=True)
    ]
    assert all(output.finished and output.outputs[0].finish_reason == "length" for output in outputs)
    assert make.executors[0].sequences == {}


def test_forms_of_prompts(make: Maker) -> None:
    llm, params = make(), SamplingParams(max_tokens=3)
    expected = reference([104, 105], 3)
    forms: list[Any] = [
        "hi", ["hi"], {"prompt": "hi"}, [{"prompt": "hi"}], [104, 105], [[104, 105]], {"prompt_token_ids": [104, 105]},
        ["hi", {"prompt_token_ids": [104, 105]}, "hi", [104, 105]],
    ]  # fmt: skip
    for form in forms:
        assert {tuple(ids) for ids in tokens(llm.generate(form, params, use_tqdm=False))} == {tuple(expected)}
    assert len(llm.generate(forms[-1], params, use_tqdm=False)) == 4
    assert llm.generate([], params, use_tqdm=False) == []


def test_default_parameters(make: Maker) -> None:
    llm = make(generation={"temperature": 0.6, "top_p": 0.9, "eos_token_id": 256, "do_sample": True})
    defaults = llm.get_default_sampling_params()
    assert (defaults.temperature, defaults.top_p, defaults.max_tokens) == (0.6, 0.9, 16)
    assert len(tokens(llm.generate("hi", use_tqdm=False))[0]) == 16
    with pytest.raises(ConfigError, match="generation defaults"):
        make(generation={"temperature": -1}).get_default_sampling_params()


def test_all_prompts_are_checked_before_any_runs(make: Maker) -> None:
    llm = make()
    with pytest.raises(RequestError, match=r"Prompt 1: .*64 tokens"):
        llm.generate(["fine", "x" * 64], SamplingParams(), use_tqdm=False)
    with pytest.raises(RequestError, match=r"^The prompt is empty"):
        llm.generate("", SamplingParams(), use_tqdm=False)
    with pytest.raises(RequestError, match="2 entries for 3 prompts"):
        llm.generate(["a", "b", "c"], [SamplingParams()] * 2, use_tqdm=False)
    with pytest.raises(RequestError, match="1 entries for 2 prompts"):
        llm.generate(["a", "b"], priority=[1], use_tqdm=False)
    with pytest.raises(RequestError, match="dict"):
        llm.generate("a", {"temperature": 0}, use_tqdm=False)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="dict"):
        llm.generate("a", {"temperature": 0}, use_tqdm=False, explain=True)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="int"):
        llm.generate(7, use_tqdm=False)  # type: ignore[arg-type]
    assert make.executors[0].sequences == {}
    assert not core_of(llm).has_work()
    assert len(llm.generate("a", SamplingParams(max_tokens=1000), use_tqdm=False)[0].outputs[0].token_ids) == 63


@pytest.mark.parametrize(
    "wrong",
    [
        {"stop": 3},
        {"stop": ["a", 3]},
        {"bad_words": "abc"},
        {"stop_token_ids": 3},
        {"allowed_token_ids": "12"},
        {"logit_bias": [1]},
    ],
    ids=str,
)
def test_parameters_of_a_wrong_kind_are_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=f"^{name} is .*; expected a"):  # scripts catch what vLLM raises
        SamplingParams(**wrong)


def test_a_misspelt_keyword_has_a_nearest_one(make: Maker) -> None:
    llm = make()
    with pytest.raises(TypeError, match=r"generate has no argument 'sampling_parms'. Did you mean 'sampling_params'"):
        llm.generate("a", sampling_parms=SamplingParams())
    with pytest.raises(RequestError, match="method is 3; expected a name or a function"):
        llm.collective_rpc(3)  # type: ignore[arg-type]


def test_choices_and_stop_strings(make: Maker) -> None:
    llm = make(script="one two three")
    (output,) = llm.generate("x", SamplingParams(n=4, stop=[" th"], max_tokens=50), use_tqdm=False)
    assert [one.text for one in output.outputs] == ["one two"] * 4
    assert [one.index for one in output.outputs] == [0, 1, 2, 3]
    assert {one.stop_reason for one in output.outputs} == {" th"}
    assert make.executors[0].sequences == {}


def test_outputs_say_how_they_came_about_when_asked(make: Maker) -> None:
    llm = make(script="one two three", generation={"temperature": 0.6, "top_p": 0.9})
    (plain,) = llm.generate("x" * 40, use_tqdm=False)
    assert plain.explain is None
    (told,) = llm.generate("x" * 40, use_tqdm=False, explain=True)
    assert told.explain is not None and told.explain.cache.first_miss is not None
    assert told.explain.sampling["temperature"] == SamplingValue(0.6, "generation_config")
    assert told.explain.cache.first_miss.cause == "last_block"
    assert told.explain.cache.cached_tokens == told.num_cached_tokens > 0
    params = SamplingParams(n=2, temperature=0.5, stop=[" th"], max_tokens=50)
    first, second = llm.generate(["x" * 40, "y" * 40], params, use_tqdm=False, explain=True)
    for output in (first, second):
        assert output.explain is not None
        assert output.explain.sampling["temperature"] == SamplingValue(0.5, "request")
        assert output.explain.sampling["top_p"] == SamplingValue(1.0, "default")
        assert output.explain.steps >= 2 * len("one two th")
        times = output.explain.times
        assert None not in (times.preparation, times.queue, times.prefill, times.decode)


def test_chats_with_a_history_that_changed(make: Maker) -> None:
    llm = make()
    turns = [{"role": "user", "content": "0123456789 abcdefgh"}, {"role": "assistant", "content": "yes"}]
    changed = [{"role": "user", "content": "0123456789 abcdXfgh"}, *turns[1:], {"role": "user", "content": "and"}]
    params = SamplingParams(max_tokens=2)
    for conversation, cause, differs_at in (
        (turns[:1], "first_seen", None),
        (turns[:1], "last_block", None),
        (changed, "history_changed", len("<user>0123456789 abcd")),
    ):
        (told,) = llm.chat(conversation, params, use_tqdm=False, explain=True)
        assert told.explain is not None and told.explain.cache.first_miss is not None
        miss = told.explain.cache.first_miss
        assert (miss.cause, miss.differs_at) == (cause, differs_at)


@pytest.mark.parametrize(("allowed", "kept_as"), [(False, "text"), (True, "control")])
def test_control_tokens_in_contents(make: Maker, allowed: bool, kept_as: str) -> None:
    llm = make(allow_control_tokens=allowed)
    tokenizer = llm.get_tokenizer()
    (end,) = [tokenizer.eos_token_id]
    evil = [{"role": "user", "content": f"x{tokenizer.eos_token}y"}]
    (told,) = llm.chat(evil, SamplingParams(max_tokens=2), use_tqdm=False, explain=True)
    assert told.explain is not None and told.prompt_token_ids is not None
    assert told.explain.control_text == [ControlText(tokenizer.eos_token, 1, kept_as)]
    assert told.prompt_token_ids.count(end) == int(allowed)
    assert (
        tokenizer.apply_chat_template(evil, chat_template=TEMPLATE, add_generation_prompt=True) == told.prompt_token_ids
    )
    (plain,) = llm.generate(f"x{tokenizer.eos_token}", SamplingParams(max_tokens=2), use_tqdm=False)
    assert plain.prompt_token_ids is not None and end in plain.prompt_token_ids


def test_chat(make: Maker) -> None:
    llm = make()
    first = [{"role": "user", "content": "a"}]
    second = [{"role": "system", "content": "s"}, {"role": "user", "content": "b"}]
    (alone,) = llm.chat(first, SamplingParams(max_tokens=4), use_tqdm=False)
    assert alone.prompt == "<user>a<bot>"
    assert alone.outputs[0].token_ids == reference(list(b"<user>a<bot>"), 4)
    both = llm.chat([first, second], use_tqdm=False)
    assert [output.prompt for output in both] == ["<user>a<bot>", "<system>s<user>b<bot>"]
    (bare,) = llm.chat(first, add_generation_prompt=False, use_tqdm=False)
    assert bare.prompt == "<user>a"
    (own,) = llm.chat(
        first, chat_template="{{ messages[0].content }}!{{ tone }}", chat_template_kwargs={"tone": "?"}, use_tqdm=False
    )
    assert own.prompt == "a!?"


@pytest.mark.parametrize(
    "messages", ["hello", 7, [], [[]], ["hello"], [["hello"]], [[{"role": "user"}, 3]], [{"content": "hi"}]]
)
def test_bad_conversations(make: Maker, messages: Any) -> None:
    llm = make()
    if messages == []:
        assert llm.chat(messages, use_tqdm=False) == []
        return
    with pytest.raises(RequestError, match=r"messages|no 'role'"):
        llm.chat(messages, use_tqdm=False)


def test_chat_without_template(make: Maker) -> None:
    with pytest.raises(RequestError, match="template"):
        make(template=None).chat([{"role": "user", "content": "a"}], use_tqdm=False)


def test_progress(make: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    llm = make()
    llm.generate(["a", "b"])
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "tok/s" in shown
    made: list[dict[str, Any]] = []

    class Bar:
        def __init__(self, **arguments: Any) -> None:
            made.append(arguments)

        def set_postfix_str(self, text: str, refresh: bool) -> None: ...

        def update(self, count: int) -> None: ...

        def close(self) -> None: ...

    llm.generate(["a", "b", "c"], use_tqdm=Bar)
    assert made[0]["total"] == 3
    llm.generate("a", use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_an_interrupt_leaves_a_usable_engine(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make()
    executor = make.executors[0]
    run, steps = executor.execute, []

    def interrupting(plan: StepPlan) -> StepResult:
        steps.append(plan)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return run(plan)

    monkeypatch.setattr(executor, "execute", interrupting)
    with pytest.raises(KeyboardInterrupt, match="0 of 4 requests had ended") as caught:
        llm.generate(["a", "b", "c", "d"], SamplingParams(max_tokens=20), False)
    assert caught.value.__cause__ is None and caught.traceback[-1].name == "_finish"
    assert tokens(llm.generate("a", SamplingParams(max_tokens=5), use_tqdm=False)) == [reference([97], 5)]
    assert executor.sequences == {}
    core_of(llm).scheduler.check_integrity()


THOUGHT = "<think>\nHm.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": CITY}}
SHOWS_TOOLS = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{# writes <tool_call> with name and arguments, "
    '{"name": ..., "arguments": ...}</tool_call>, and <think></think> #}' + TEMPLATE
)


def test_calls_in_conversations_are_taken_apart(make: Maker) -> None:
    script = THOUGHT + "I look.\n" + CALL + "\n" + CALL.replace("Köln", "Bonn")
    llm = make(template=SHOWS_TOOLS, script=script, max_model_len=1024)
    hi = [{"role": "user", "content": "Hi"}]
    params = SamplingParams(max_tokens=400)
    (answer,) = llm.chat(hi, params, tools=[WEATHER], use_tqdm=False)
    (completion,) = answer.outputs
    parts = completion.parts
    assert parts is not None and completion.text == script
    assert (parts.reasoning, parts.content) == ("Hm.", "I look.")
    called = [(call.name, call.arguments, call.kind, call.complete) for call in parts.tool_calls]
    assert called == [("weather", f'{{"city": "{city}"}}', "function", True) for city in ("Köln", "Bonn")]
    assert len({call.id for call in parts.tool_calls}) == 2

    for cut in llm.chat([hi, hi], SamplingParams(max_tokens=90), tools=[WEATHER], use_tqdm=False):
        whole = cut.outputs[0].parts
        assert whole is not None and [call.complete for call in whole.tool_calls] == [False]
    ways: list[dict[str, Any]] = [{}, {"tools": [WEATHER], "tool_choice": "none"}]
    for more in ways:
        (unread,) = llm.chat(hi, params, use_tqdm=False, **more)
        assert unread.outputs[0].parts is None
        assert unread.prompt == "<user>Hi<bot>"


def test_a_choice_of_tool_is_held_and_a_wrong_one_refused(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make(template=SHOWS_TOOLS, script="-", max_model_len=1024)
    hi = [{"role": "user", "content": "Hi"}]
    asked: list[Any] = []

    def compile_(compiler: GrammarCompiler, wanted: Any) -> CompiledGrammar:
        asked.append(wanted)
        return CompiledGrammar("none", "key", b"")

    monkeypatch.setattr(GrammarCompiler, "compile", compile_)
    named = {"type": "function", "function": {"name": "weather"}}
    params = SamplingParams(max_tokens=3)
    for choice in (None, "auto", "required", named):
        llm.chat(hi, params, tools=[WEATHER], tool_choice=choice, use_tqdm=False)
    assert ["weather" in wanted.structural_tag for wanted in asked] == [True, True]
    assert params.structured_outputs is None
    with pytest.raises(RequestError, match="Did you mean 'weather'"):
        llm.chat(hi, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "wether"}})
    with pytest.raises(RequestError, match="no tools"):
        llm.chat(hi, tool_choice="required")
    guided = make(script=f"I look.\n{CALL}", max_model_len=1024).chat(
        hi, SamplingParams(max_tokens=400), tools=[WEATHER], use_tqdm=False
    )
    assert '{"name": "weather"' in guided[0].prompt and "<tool_call>" in guided[0].prompt
    assert guided[0].outputs[0].parts is not None
    assert guided[0].outputs[0].parts.tool_calls[0].arguments == '{"city": "Köln"}'
    unknown = make(template=TEMPLATE + "{{ tools }}", script="-", max_model_len=1024)
    assert unknown.chat(hi, params, tools=[WEATHER], use_tqdm=False)[0].outputs[0].parts is None
    with pytest.raises(RequestError, match="--tool-call-parser"):
        unknown.chat(hi, tools=[WEATHER], tool_choice="required")


def test_reset_and_close(make: Maker) -> None:
    with make() as llm:
        assert llm.reset_prefix_cache()
        assert llm.get_tokenizer().encode("a") == [97]
    llm.close()
    assert make.executors[0].closed
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("a", use_tqdm=False)


def test_importing_core_is_light() -> None:
    code = (
        "finders = [*sys.meta_path]; import core; assert sys.meta_path == finders; "
        "assert not [m for m in sys.modules if m.startswith('core.')]; "
        "core.SamplingParams; core.RequestOutput; core.CompletionOutput"
    )
    run_torch_free(code)
    assert {"LLM", "SamplingParams"} <= set(dir(core))
    with pytest.raises(AttributeError, match="has no attribute 'LMM'"):
        core.LMM  # noqa: B018
