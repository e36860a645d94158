"""`--help` and its narrower forms: complete, quick, plain in a pipe and coloured in a terminal."""

import os
import pty
import re
import resource
import subprocess
import sys

import pytest

from core.args.schema import schema
from core.commands.main import main
from core.plugin.registry import PluginRegistry
from core_config.arguments.help import COMMON


def text_of(word, capsys):
    assert main(["serve", f"--help={word}" if word else "--help"]) == 0
    return capsys.readouterr().out


def test_the_whole_help_names_every_argument(capsys):
    text = text_of("all", capsys)
    for field in schema().fields.values():
        assert all(flag in text for flag in field.flags)
    assert text_of("page", capsys) == text


def test_the_help_is_short_and_says_where_the_rest_is(capsys):
    text = text_of("", capsys)
    assert len(text.splitlines()) < 125
    for name in COMMON:
        assert schema().fields[name].flag in text
    assert all(f"  {group} " in text for group in schema().titles)
    assert "--ssl-keyfile" not in text and "all arguments (all;" in text


@pytest.mark.parametrize(
    "word, there, absent",
    [
        ("scheduler", ["Scheduling:", "--max-num-seqs", "--async-scheduling"], ["--port"]),
        ("SchedulerConfig", ["--max-num-seqs"], ["--port"]),
        ("max-model-len", ["--max-model-len N", "expects", "since"], ["--max-num-seqs"]),
        ("--max_model_len", ["--max-model-len N"], ["--max-num-seqs"]),
        ("-dcp", ["--decode-context-parallel-size, -dcp"], ["--data-parallel"]),
        ("-pcp", ["--prefill-context-parallel-size", "does not serve it yet"], ["--data-parallel"]),
        ("TLS", ["--ssl-keyfile", "--ssl-certfile"], ["--max-num-seqs"]),
        ("listgroup", ["scheduler", "kernel", "arguments"], ["--max-num-seqs"]),
        ("compilation-config", ["--compilation-config.mode", "--compilation-config.inductor_compile_config.combo"], []),
        ("swap-space", ["--swap-space", "no such argument", "--kv-offloading-size"], ["--max-num-seqs"]),
        ("platform.cpu", ["--platform-config.threads"], ["--max-num-seqs"]),
        ("prompt_lookup_max", ["--speculative-config.prompt_lookup_max", "no such argument"], ["--max-num-seqs"]),
    ],
)
def test_narrowed(word, there, absent, capsys):
    text = text_of(word, capsys)
    assert all(words in text for words in there), text
    assert not any(words in text for words in absent), text


@pytest.mark.parametrize(
    "field", [field for field in schema().fields.values() if field.arg.plugin], ids=lambda it: it.flag
)
def test_the_help_of_an_argument_lists_the_plugins_that_it_names(field, capsys):
    rows = PluginRegistry().rows(field.arg.plugin)
    for flag in field.flags:
        lines = text_of(flag, capsys).partition(f"Names for {field.flag}:")[2].splitlines()
        heads = [line[2:].split("  ")[0] for line in lines if line[2:3].strip()]
        if field.name == "quantization":
            assert heads.pop(-2) == "names of other engines" and "awq_marlin (awq)" in " ".join(" ".join(lines).split())
        assert heads[:-1] == [row.name for row in rows]
        assert heads[-1] == (f"core plugins list --kind={field.arg.plugin}" if rows else "(none)")
        words = " ".join(" ".join(lines).split())
        assert words.count(f"({rows[0].distribution} " if rows else "No installed package offers one.") > 0


@pytest.mark.parametrize(
    ("word", "there"),
    [
        ("--tool-call-parser", ["hermes, qwen3_json", "llama3_json"]),
        ("reasoning_parser", ["deepseek_r1"]),
        ("structured-outputs-config", ["Names for --structured-outputs-config.backend:", "llguidance", "xgrammar"]),
    ],
)
def test_names_of_formats_and_of_keys_are_listed(word, there, capsys):
    text = text_of(word, capsys)
    assert all(words in text for words in there), text


def test_plugins_of_files_are_listed_and_blocked_ones_say_why(tmp_path, monkeypatch, capsys):
    source = "from core.plugin.manifest_of import manifest_of\nKIND, CONTRACT = 'quantization', 1\n"
    (tmp_path / "mine.py").write_text(source + "core_spec, core_load = manifest_of('mine', 'three bits', 'a.b:C')\n")
    monkeypatch.setenv("CORE_PLUGINS", str(tmp_path / "mine.py"))
    assert " mine three bits (" in " ".join(text_of("--quantization", capsys).split())
    monkeypatch.setenv("CORE_PLUGINS", "no:gguf")
    assert "gguf cannot be used: " in " ".join(text_of("--quantization", capsys).split())


def seconds_of(words):
    """The least processor time of three runs of a command."""
    best = 99.0
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-P", "-m", "core", *words], capture_output=True, check=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


@pytest.mark.parametrize("word", ["", "scheduler", "cache", "tokens", "prompt_lookup_max"])
def test_quick(word):
    """Help takes a few times the shortest command: about 6 for a name of a plugin, and 25 if torch were imported."""
    taken, shortest = seconds_of(["serve", f"--help={word}" if word else "--help"]), seconds_of(["--version"])
    print(f"core serve --help={word}: {taken:.2f} s of processor time, core --version {shortest:.2f} s")
    assert taken < 15 * shortest


def in_terminal(words, columns=100):
    """What a command writes to a terminal."""
    parent, child = pty.openpty()
    command = [sys.executable, "-P", "-m", "core", *words]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "PAGER": "cat"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, stdout=child, stdin=child, stderr=child, env=environment)
    os.close(child)
    chunks = []
    while True:
        try:
            chunk = os.read(parent, 65536)
        except OSError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(parent)
    assert process.wait(timeout=60) == 0
    return b"".join(chunks).decode()


@pytest.mark.parametrize("word", ["scheduler", "page"])
def test_a_terminal_gets_colours_and_a_pipe_does_not(word, capsys):
    coloured, plain = in_terminal(["serve", f"--help={word}"]), text_of(word, capsys)
    assert "\x1b[36m" in coloured and "--max-num-seqs" in coloured
    assert "\x1b" not in plain


@pytest.mark.parametrize("columns", [50, 80])
def test_no_name_is_cut_however_narrow_the_terminal(columns):
    shown = re.sub(r"\x1b\[[0-9;]*m", "", in_terminal(["serve", "--help=all"], columns))
    words = set(re.split(r"[\s,]+", shown))
    for field in schema().fields.values():
        assert set(field.flags) <= words, field.name
    listed = in_terminal(["plugins", "list"], columns)
    assert all(name in listed for name in ("compressed_tensors", "glm4_moe_lite_mtp", "mlp_speculator"))


@pytest.mark.parametrize(
    "words, expected",
    [
        (["serve", "--help=schedler"], "Did you mean 'scheduler'?"),
        (["serve", "--swap-space", "4"], "use --kv-offloading-size"),
        (
            ["serve", "--prefill-context-parallel-size", "2"],
            "--prefill-context-parallel-size 2: this engine does not serve it yet",
        ),
        (["serve", "--max-model-len", "1.5K"], "1.5k is 1500"),
        (["serve", "-O4"], "-O 4: expected an integer from 0 to 3"),
        (["serve", "-cc.compile_sizes=3"], "'compile_sizes': this engine does not serve it yet"),
        (["serve", "--config", "/nowhere.yaml"], "cannot be read"),
    ],
)
def test_mistakes_exit_with_2(words, expected, capsys):
    assert main(words) == 2
    told = capsys.readouterr().err
    assert expected in told and "Traceback" not in told


def test_a_deprecated_argument_warns_once_and_works(monkeypatch, tiny_llama, capsys):
    from core_apis.server import launch

    seen = []
    monkeypatch.setattr(launch, "serve", lambda resolution, process, signals: seen.append(resolution) or 0)
    assert main(["serve", str(tiny_llama), "--device=cpu", "--enable-log-requests", "--disable-log-requests"]) == 0
    assert seen[0].server.enable_log_requests is False
    assert capsys.readouterr().err.count("deprecated") == 1
