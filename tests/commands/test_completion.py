"""Completion scripts, run by the shells themselves (zsh and fish where they are installed)."""

import shutil
import subprocess

import pytest

from core.args.schema import schema
from core.commands.main import main

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def scripts():
    import contextlib
    import io

    found = {}
    for shell in SHELLS:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert main(["completion", shell]) == 0
        found[shell] = out.getvalue()
    return found


def run(command, text):
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    return done.stdout


def bash(scripts, *words):
    """What bash offers at the end of a line; the words as bash splits them, `=` apart."""
    quoted = " ".join(f"'{word}'" for word in words)
    text = (
        scripts["bash"]
        + f'COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _core; printf "%s\\n" "${{COMPREPLY[@]}}"\n'
    )
    return run(["bash", "--norc", "-s"], text).split()


def test_bash_completes_commands_and_their_commands(scripts):
    assert bash(scripts, "core", "s") == ["serve", "save-sharded", "scale"]
    assert {"list", "show", "explain"} <= set(bash(scripts, "core", "plugins", ""))
    assert set(bash(scripts, "core", "completion", "")) == set(SHELLS)


def test_bash_completes_every_flag(scripts):
    offered = set(bash(scripts, "core", "serve", "-"))
    wanted = {flag for field in schema().fields.values() for flag in field.flags}
    assert offered >= wanted | set(schema().flags())
    assert bash(scripts, "core", "serve", "--max-model-l") == ["--max-model-len"]
    assert "--kv-events-config.topic" in bash(scripts, "core", "serve", "--kv-events-config.")


@pytest.mark.parametrize("words", [["--dtype", "fl"], ["--dtype=fl"], ["--dtype", "=", "fl"]])
def test_bash_completes_choices(scripts, words):
    assert set(bash(scripts, "core", "serve", *words)) == {"float16", "float32", "float"}


def test_bash_completes_plugin_names_and_plugins_own_arguments(scripts):
    assert set(bash(scripts, "core", "serve", "-q", "")) >= {"auto", "gguf"}
    assert "torch_sdpa" in bash(scripts, "core", "serve", "--attention-backend", "=")
    assert "xgrammar" in bash(scripts, "core", "serve", "--structured-outputs-config.backend", "=")
    assert bash(scripts, "core", "serve", "--platform-config.sp") == ["--platform-config.spin_microseconds"]


def test_bash_leaves_file_names_to_the_shell(scripts):
    assert bash(scripts, "core", "serve", "model") == []
    assert "-o default" in scripts["bash"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh(scripts):
    text = (
        "compdef() { }; _files() { print files }; compset() { }; compadd() { print -- ${@:2} }\n"
        "_describe() { print -l -- ${(P)argv[-1]} }\n" + scripts["zsh"]
    )
    dtype = run(["zsh", "-f", "-s"], text + "words=(core serve --dtype ''); CURRENT=4; _core\n")
    assert dtype.split()[:2] == ["auto", "bfloat16"]
    flags = run(["zsh", "-f", "-s"], text + "words=(core serve --); CURRENT=3; _core\n")
    assert "\n--max-model-len:" in flags


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(scripts):
    offered = run(["fish", "--no-config"], scripts["fish"] + "complete -C'core serve --dtype '\n")
    assert {line.split("\t")[0] for line in offered.splitlines()} >= {"auto", "bfloat16"}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_has_every_flag_and_is_made_of_whole_lines(scripts, shell):
    for field in schema().fields.values():
        for flag in field.flags:
            assert (flag.lstrip("-") if shell == "fish" else flag) in scripts[shell]
    assert scripts[shell].endswith("\n")


def test_mistakes(capsys):
    assert main(["completion", "bsh"]) == 2
    assert "Did you mean 'bash'?" in capsys.readouterr().err
    assert main(["completion"]) == 2
    assert "eval" in capsys.readouterr().out
