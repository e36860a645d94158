"""Tokenizers that are plugins: control tokens, pairs, spans, other processes, whole engines, and what goes wrong in one."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core import LLM, SamplingParams
from core.api.errors import ConfigError, PluginError, RequestError
from core.api.structured_outputs import StructuredOutputsParams
from core_config.resolve import resolve
from core_tokens.content_encoding import ContentEncoder
from core_tokens.detokenizer import IncrementalDetokenizer
from core_tokens.script_tokenizer import ScriptTokenizer
from core_tokens.tokenizer import Tokenizer
from tests.tokenizers.plugged_tokenizer import opened, write_plugin

HELLO, HELL, WORLD, END = 256, 257, 258, 259


def test_control_tokens_are_found_in_prompts_and_are_text_in_messages(tmp_path: Path) -> None:
    tokenizer = opened(tmp_path)
    assert tokenizer.encode("hello<|end|>wörld") == [HELLO, END, WORLD]
    assert tokenizer.decode([HELLO, END, WORLD]) == "hellowörld"
    assert tokenizer.decode([HELLO, END], skip_special_tokens=False) == "hello<|end|>"
    contents = ContentEncoder.of(tokenizer)
    assert contents.encode("hello<|end|>") == [HELLO, *b"<|end|>"]
    assert contents.encoded("<|end|>").control_text == {"<|end|>": 1}
    tokenizer.allows_control = True
    assert ContentEncoder(tokenizer).encode("hello<|end|>") == [HELLO, END]


def test_pairs_have_their_ends_and_spans_are_characters(tmp_path: Path) -> None:
    tokenizer = opened(tmp_path, pairs=True)
    assert tokenizer.encode("hello") == [1, HELLO, 2]
    assert tokenizer.encode_pair("hello", "é") == ([1, HELLO, 2, 2, *"é".encode(), 2], [0, 0, 0, 0, 1, 1, 1])
    hidden = ContentEncoder.of(tokenizer).encode_pair("<|end|>", "")
    assert hidden.ids == [1, *b"<|end|>", 2, 2, 2]
    assert tokenizer.spans("é<|end|>wörld") == [(0, 0), (0, 1), (0, 1), (1, 8), (8, 13), (0, 0)]
    with pytest.raises(RequestError, match="no form of pairs"):
        opened(tmp_path).encode_pair("a", "b")


def test_answers_come_whole_character_by_whole_character(tmp_path: Path) -> None:
    stream = IncrementalDetokenizer(opened(tmp_path))
    assert [stream.push([index]) for index in [HELL, *"🙂".encode(), WORLD]] == ["hell", "", "", "", "🙂", "wörld"]


def test_another_process_builds_the_same_one(tmp_path: Path) -> None:
    tokenizer = opened(tmp_path)
    tokenizer.read_small_letters()
    other = Tokenizer.restore(tokenizer.snapshot)
    assert other.encode("HELLO <|end|>") == tokenizer.encode("HELLO <|end|>") == [HELLO, 32, END]
    script = ScriptTokenizer(opened(tmp_path))
    assert script.tokenize("hello ☃") == ["hello", " ", "\\xe2", "\\x98", "\\x83"]
    assert script.convert_tokens_to_ids(["wörld", "<|end|>"]) == [WORLD, END]
    assert script.eos_token == "<|end|>" and script.get_added_vocab() == {"<|end|>": END}


def test_mistakes_of_a_plugin_are_named(tmp_path: Path) -> None:
    tokenizer = opened(tmp_path)
    with pytest.raises(PluginError, match="'mine': encode raised ZeroDivisionError"):
        tokenizer.encode("RAISE")
    with pytest.raises(PluginError, match="returned 259, which is a control token"):
        tokenizer.encode("CONTROL")
    with pytest.raises(RequestError, match="no language of mine"):
        tokenizer.encode("REFUSE")
    with pytest.raises(RequestError, match="not valid Unicode"):
        tokenizer.encode("\ud800")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"tokenizer_mode": "mini"},
            "expected one of auto, hf, slow, mistral, deepseek_v32, mine.* Did you mean 'mine'",
        ),
        ({"tokenizer_mode": "qwen_vl"}, "files are named, which is not read"),
        ({"tokenizer_mode": "custom"}, "a plugin of kind tokenizer"),
        ({"tokenizer_config": {"end": "x"}}, "--tokenizer-config: no tokenizer plugin is used"),
        ({"tokenizer_mode": "mine", "tokenizer_config": {"end": 1}}, "end"),
    ],
    ids=str,
)
def test_refusals_are_sentences(tmp_path: Path, tiny_llama: Path, arguments: dict[str, object], words: str) -> None:
    plugins = str(write_plugin(tmp_path))
    with pytest.raises(ConfigError, match=words):
        resolve({"model": str(tiny_llama), "plugins": plugins, **arguments}, context="explain")


def test_an_engine_reads_and_writes_with_it(tmp_path: Path, tiny_llama: Path) -> None:
    """Texts, stop strings and a form are those of the plugin's tokens."""
    settings: dict[str, Any] = {"max_model_len": 64, "dtype": "float32", "use_tqdm_on_load": False}
    named: dict[str, Any] = {
        "tokenizer_mode": "mine",
        "plugins": str(write_plugin(tmp_path)),
        "tokenizer": str(tmp_path / "model"),
    }
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    form = SamplingParams(
        temperature=0.0, max_tokens=8, structured_outputs=StructuredOutputsParams(choice=["wörld", "hell"])
    )
    with LLM(str(tiny_llama), **named, **settings) as llm:
        [plain] = llm.generate(["hell and wörl"], greedy, use_tqdm=False)
        assert plain.prompt_token_ids == [HELL, *b" and w", *"ö".encode(), *b"rl"]
        words = {HELLO: b"hello", HELL: b"hell", WORLD: "wörld".encode(), END: b""}
        spelled = [words.get(index, b"%c" % (index % 256)) for index in plain.outputs[0].token_ids]
        assert plain.outputs[0].text == b"".join(spelled).decode(errors="replace")
        [formed] = llm.generate(["x"], form, use_tqdm=False)
        assert formed.outputs[0].text in ("wörld", "hell") and formed.outputs[0].finish_reason == "stop"
        # The plugin would sleep if a step asked it for the tokens of this text, which the form leaves no choice of.
        hangs = msgspec.structs.replace(form, structured_outputs=StructuredOutputsParams(regex="[ab]HANG"))
        for _ in range(2):
            [forced] = llm.generate(["x"], hangs, use_tqdm=False)
            assert forced.outputs[0].text[1:] == "HANG"
        with pytest.raises(PluginError, match="'mine'"):
            llm.generate(["RAISE"], greedy, use_tqdm=False)
        [again] = llm.generate(["hell and wörl"], greedy, use_tqdm=False)
        assert again.outputs[0].token_ids == plain.outputs[0].token_ids


def test_conversations_of_deepseek_v32_are_those_of_its_encoder(tiny_llama: Path) -> None:
    """The rules of the encoder that is published beside the weights, one by one."""
    from core_tokens.chat.chat_template import ChatTemplate
    from core_tokens.chat.mode_templates import mode_template
    from core_tokens.tokenizer_source import TokenizerSource

    source = mode_template("deepseek_v32")
    assert (
        Tokenizer.from_source(TokenizerSource(directory=str(tiny_llama)), mode="deepseek_v32").chat_template == source
    )
    template = ChatTemplate(source)

    def written(messages: list[Any], **variables: Any) -> str:
        return str(template.render(messages, **variables)).removeprefix("<｜begin▁of▁sentence｜>")

    ask = {"role": "user", "content": "Hi"}
    thought = {"role": "assistant", "content": "Hello", "reasoning_content": "Hm"}
    assert written([ask]) == "<｜User｜>Hi<｜Assistant｜></think>"
    assert written([ask], thinking=True) == "<｜User｜>Hi<｜Assistant｜><think>"
    assert written([ask, thought, ask], thinking=True) == (
        "<｜User｜>Hi<｜Assistant｜></think>Hello<｜end▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>"
    )
    arguments = json.dumps({"city": "Köln", "days": 3, "of": [1, None]}, ensure_ascii=False)
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    calls = {"role": "assistant", "content": "", "reasoning_content": "Look", "tool_calls": [call, call]}
    results = [{"role": "tool", "tool_call_id": "1", "content": text} for text in ("sun", "rain")]
    invoked = (
        '<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Köln</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="of" string="false">[1, null]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    )
    assert written([ask, calls, *results], thinking=True) == (
        "<｜User｜>Hi<｜Assistant｜><think>Look</think>\n\n<｜DSML｜function_calls>\n" + invoked * 2
        + "</｜DSML｜function_calls><｜end▁of▁sentence｜>\n\n<function_results>\n<result>sun</result>\n<result>rain</result>\n"
        "</function_results>\n\n<think>"
    )  # fmt: skip
    tool = {"type": "function", "function": {"name": "weather", "description": "Wetter für <Orte>"}}
    shown = written([{"role": "system", "content": "Be kind."}, {"role": "developer", "content": "Hi"}], tools=[tool])
    assert shown.startswith("Be kind.\n\n## Tools\nYou have access to a set of tools")
    assert '<functions>\n{"name": "weather", "description": "Wetter für <Orte>"}\n</functions>\n<｜User｜>' in shown
    assert shown.endswith("<｜User｜>\n\n# The user's message is: Hi<｜Assistant｜></think>")
    for wrong, words in (
        ([ask, {"role": "assistant", "content": "x"}], "needs its reasoning"),
        ([ask, *results], "result of no call"),
        ([{"role": "narrator", "content": "x"}], "unknown role"),
    ):
        with pytest.raises(RequestError, match=words):
            written(wrong, thinking=True)
