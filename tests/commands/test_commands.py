"""The command `core`: fast, torch-free, sentences instead of tracebacks, exit codes."""

import json
import os
import re
import resource
import subprocess
import sys

import pytest

from core.commands.main import main
from core.commands.table import KNOWN
from core.version import __version__

FAST = [
    ["--version"],
    ["--help"],
    ["serve", "--help"],
    ["plugins", "list"],
    ["models"],
    ["run-batch", "--help"],
    ["chat", "--help"],
    ["bench", "serve", "--help"],
]


def core(*words, timeout=60, **environment):
    command = [sys.executable, "-P", "-m", "core", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env={**os.environ, "COLUMNS": "100", **environment}
    )


@pytest.mark.parametrize("words", FAST, ids=" ".join)
def test_quick_commands_import_no_torch(words):
    code = (
        "import sys; from core.commands.main import main; "
        f"code = main({words!r}); print(code, 'torch' in sys.modules, file=sys.stderr)"
    )
    ratios = []
    for _ in range(5):
        usual, _ = processor_seconds(USUAL)
        seconds, done = processor_seconds(code)
        exit_code, torch_loaded = done.stderr.split()[-2:]
        assert (exit_code, torch_loaded) == ("0", "False")
        ratios.append(seconds / usual)
        if min(ratios) < 5:
            break
    # 4 to 5.5 times as long as these imports; that of torch alone takes more than 10 times as long
    assert min(ratios) < 8, f"core {' '.join(words)}: {min(ratios):.1f} times as long as some imports of Python's own"


USUAL = "import asyncio, decimal, email.message, http.server, multiprocessing.pool, statistics, tarfile, unittest.mock, zipfile"


def processor_seconds(code):
    """Seconds of a processor: what else the machine does takes wall time from a program, not these."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done


def test_every_command_is_in_the_help(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert [
        name
        for name in KNOWN
        if f"\n  {name.replace('.', ' ')} " not in out and f"\n  {name.replace('.', ' ')}\n" not in out
    ] == []


def test_version_and_module_entry():
    import importlib.metadata

    assert core("--version").stdout.strip() == f"core {__version__}"
    assert importlib.metadata.version("core-engine") == __version__


def test_a_folder_called_core_in_the_working_directory_changes_nothing(tmp_path):
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").write_text("raise SystemExit('shadowed')")
    command = [sys.executable, "-P", "-m", "core", "plugins", "list", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    rows = {(row["kind"], row["name"]): row for row in json.loads(done.stdout)}
    assert rows["platform", "cpu"]["status"] == "available"


def test_list_as_json_has_every_field():
    rows = json.loads(core("plugins", "list", "--json").stdout)
    for row in rows:
        assert set(row) >= {"kind", "name", "distribution", "version", "contract", "status", "reason"}
        assert row["status"] in ("available", "unavailable", "broken", "blocked")
        assert row["reason"] or row["status"] == "available"
    ours = {(row["kind"], row["name"]) for row in rows if row["status"] == "available"}
    assert ours >= {
        ("platform", "cpu"),
        ("loader", "gguf"),
        ("loader", "safetensors"),
        ("loader", "dummy"),
        ("quantization", "gguf"),
        ("attention", "torch_sdpa"),
        ("speculative", "ngram"),
    }
    kinds = {row["kind"] for row in json.loads(core("plugins", "list", "--json", "--kind=loader").stdout)}
    assert kinds == {"loader"}


def test_show():
    shown = core("plugins", "show", "platform.cpu").stdout
    assert "--platform-config.threads int|none" in shown
    (detail,) = json.loads(core("plugins", "show", "ngram", "--json").stdout)
    assert detail["arguments"][0]["flag"] == "--speculative-config.prompt_lookup_max"


def test_explain(tiny_llama):
    done = core("plugins", "explain", str(tiny_llama), "--max-num-seqs", "5", "--json", "--api-key", "secret-word")
    told = json.loads(done.stdout)
    assert told["arguments"]["max_num_seqs"] == {"value": 5, "origin": "command line", "reason": ""}
    assert told["memory"]["kv_bytes"] == told["memory"]["num_blocks"] * told["memory"]["kv_block_bytes"]
    assert "secret-word" not in done.stdout
    text = core("plugins", "explain", str(tiny_llama)).stdout
    for words in ("loader: safetensors", "platform: cpu", "speculative: none", "weights", "KV cache"):
        assert words in text


@pytest.mark.parametrize(
    "words, expected",
    [
        (["srve"], "Did you mean 'serve'?"),
        (["plugins", "lst"], "Did you mean 'list'?"),
        (["plugins", "show", "ngrm"], "Did you mean 'ngram'?"),
        (["plugins", "list", "--kind", "loadr"], "Did you mean 'loader'?"),
        (["plugins", "list", "--jso"], "Did you mean '--json'?"),
        (["plugins", "show"], "name a plugin"),
        (["serve", "/nowhere/model.gguf"], "no such file or directory"),
        (["serve", "--prot", "1"], "Did you mean '--port'?"),
        (["serve", "--help=zzzz"], "no such group or argument"),
        (["serve", "--help=speculative.ngrm"], "Did you mean 'ngram'?"),
        (["build-kernels", "cuda"], "no native kernels"),
    ],
)
def test_mistakes_are_sentences_and_exit_with_2(words, expected, capsys):
    from core.commands.main import main

    assert main(words) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert "Traceback" not in captured.err


def test_a_reader_that_leaves_is_no_error():
    command = f"{sys.executable} -P -m core serve --help | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0].startswith("Usage: core serve")
    assert done.stdout.splitlines()[-1] == "0"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize(
    "words", [["--version"], ["serve", "--help"], ["plugins", "list", "--json"], ["completion", "bash"]]
)
def test_a_full_disk_is_one_line(words):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-P", "-m", "core", *words]
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=environ)
    assert (done.returncode, done.stderr) == (1, "core: the output cannot be written: No space left on device.\n")


def test_serve_hands_the_resolution_over(monkeypatch, tiny_llama, capsys):
    from core.commands.main import main
    from core_apis.server import launch

    seen = []
    monkeypatch.setattr(launch, "serve", lambda resolution, process, signals: seen.append(resolution) or 0)
    assert main(["serve", str(tiny_llama), "--port", "81", "--port", "82", "--device=cpu"]) == 0
    assert seen[0].server.port == 82
    first, *others = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} INFO server core: Starting version \S+\.", first)
    assert any(" WARNING server core: " in line and "given twice" in line for line in others)


def test_a_mistake_leaves_no_engine_process_behind(monkeypatch, tmp_path, capsys):
    """The engine process starts before the arguments are read."""
    from core.commands.main import main
    from core_supervision.child import EngineProcess

    spawned, spawn = [], EngineProcess.spawn
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(EngineProcess, "spawn", lambda: spawned.append(spawn()) or spawned[0])
    assert main(["serve", "--no-such-argument", "1"]) == 2
    assert "--no-such-argument" in capsys.readouterr().err
    with pytest.raises(ProcessLookupError):
        os.kill(spawned[0].pid, 0)
    assert list(tmp_path.iterdir()) == []


def test_build_kernels_calls_what_the_platform_declares(monkeypatch, capsys):
    from core.commands.main import main
    from core_platforms.cpu import build

    monkeypatch.setattr(build, "rebuild", lambda: "compiled")
    assert main(["build-kernels"]) == 0
    assert capsys.readouterr().out == "compiled\n"
