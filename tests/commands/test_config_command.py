"""`core config explain | show | schema`."""

import json
import os
import pty
import subprocess
import sys

import jsonschema
import pytest
import yaml

from core.commands.main import main


def run(capsys, *words):
    code = main(["config", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_explain_as_json(capsys, tiny_llama):
    code, out, _ = run(capsys, "explain", str(tiny_llama), "--max-num-seqs", "5", "--json", "--api-key", "hush")
    told = json.loads(out)
    assert code == 0 and "hush" not in out
    assert told["arguments"]["max_num_seqs"] == {"value": 5, "origin": "command line", "reason": ""}
    assert told["arguments"]["max_model_len"]["origin"] == "derived"
    loader = told["plugins"]["loader"]
    assert loader["chosen"] == ["safetensors"]
    refused = {c["name"]: c for c in loader["candidates"] if c["verdict"] == "refused"}
    assert refused["gguf"]["reasons"] == ["does not claim the checkpoint"]
    memory = told["memory"]
    assert memory["kv_bytes"] == memory["num_blocks"] * memory["kv_block_bytes"]
    assert memory["kv_tokens"] == (memory["num_blocks"] - 1) * memory["block_size"]
    assert memory["max_concurrency"] == pytest.approx(memory["kv_tokens"] / memory["max_model_len"], abs=0.01)
    assert memory["weights_bytes"] > 0 and memory["workspace_bytes"] > 0
    assert told["numerics"].endswith("/bfloat16/kv-bfloat16")
    assert told["waivers"] == []
    assert told["response_format"]["row"]["name"] == "generic" and "markers" in told["response_format"]["reason"]


def test_explain_for_people(capsys, tiny_llama):
    code, out, _ = run(capsys, "explain", str(tiny_llama), "--gpu-memory-utilization", "0.99")
    assert code == 0
    for words in (
        "numerics",
        "loader: safetensors",
        "above 0.98",
        "weights",
        "requests of 512 tokens",
        "same tokens\n  none\n",
        "Format of answers\n  generic: tool calls (the chat template shows no tools",
    ):
        assert words in out
    assert "\033" not in out


def test_explain_is_coloured_in_a_terminal(tiny_llama):
    leader, follower = pty.openpty()
    command = [sys.executable, "-P", "-m", "core", "config", "explain", str(tiny_llama)]
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    child = subprocess.Popen(command, stdout=follower, stderr=subprocess.DEVNULL, env=environ)
    os.close(follower)
    out = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            break
        if not part:
            break
        out += part
    assert child.wait(timeout=60) == 0
    assert b"\033[1m" in out


def test_show_is_yaml_that_can_be_fed_back(capsys, tiny_llama, tmp_path):
    code, out, _ = run(capsys, "show", str(tiny_llama), "--max-model-len", "100", "--served-model-name", "x")
    document = yaml.safe_load(out)
    assert code == 0
    assert (document["model"], document["max_model_len"]) == (str(tiny_llama), 100)
    (tmp_path / "c.yaml").write_text(out)
    assert run(capsys, "show", "--config", str(tmp_path / "c.yaml"))[1] == out
    explained = [
        json.loads(run(capsys, "explain", *words, "--json")[1])
        for words in (
            [str(tiny_llama), "--max-model-len=100", "--served-model-name=x"],
            ["--config", str(tmp_path / "c.yaml")],
        )
    ]
    for told in explained:
        told["values"] = {name: row["value"] for name, row in told.pop("arguments").items() if name != "config"}
        told.pop("plugins"), told.pop("selections")
    assert explained[0] == explained[1]


def test_schema(capsys):
    code, out, _ = run(capsys, "schema")
    assert code == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(out))


@pytest.mark.parametrize(
    "words, expected",
    [
        (["shw"], "Did you mean 'show'?"),
        (["schema", "x"], "takes no arguments"),
        (["explain", "/nowhere/model.gguf"], "no such file or directory"),
        (["show", "--prot", "1"], "Did you mean '--port'?"),
        (["explain", "--tool-call-parser", "hermos"], "--tool-call-parser hermos: there is no response format"),
        (["explain", "--reasoning-config.reasoning-start-str", "<t>"], "reasoning_end_str"),
    ],
)
def test_mistakes(capsys, words, expected):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "") and expected in err


def test_help(capsys):
    assert run(capsys, "--help")[0] == 0
    assert run(capsys)[0] == 2
    code, out, _ = run(capsys, "explain", "--help=scheduler")
    assert code == 0 and "--max-num-seqs" in out


def test_all_problems_come_together(capsys):
    words = [
        "--decode-context-parallel-size",
        "2",
        "--mamba-cache-philox-rounds",
        "12",
    ]
    words += [
        "--max-num-seqs",
        "9",
        "--max-num-batched-tokens",
        "8",
        "--mm-encoder-only",
        "/nowhere",
    ]
    code, _, err = run(capsys, "explain", *words)
    assert code == 2
    for expected in (
        "--decode-context-parallel-size 2",
        "--mamba-cache-philox-rounds 12",
        "--max-num-seqs 9",
        "--mm-encoder-only",
        "/nowhere",
    ):
        assert expected in err, err


def test_commands_import_no_torch(tiny_llama):
    code = (
        "import sys; from core.commands.main import main; "
        f"codes = [main(['config', *words]) for words in (['explain', {str(tiny_llama)!r}], ['show'], ['schema'])]; "
        "print(codes, 'torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stderr.splitlines()[-1] == "[0, 0, 0] False", done.stderr
