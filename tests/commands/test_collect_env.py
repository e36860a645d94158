"""`core collect-env`: facts without secrets, without torch, quickly enough."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.commands.main import main
from core_commands.cli.private import hidden_value


def test_facts_are_those_of_the_system(monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("CORE_API_KEY", "core_secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("HF_ENDPOINT", "https://ann:a_secret@mirror/x")
    monkeypatch.setenv("UNRELATED_PASSWORD", "x_secret")
    assert main(["collect-env", "--json"]) == 0
    told = capsys.readouterr().out
    assert "secret" not in told
    facts = json.loads(told)
    assert facts["Environment"]["OMP_NUM_THREADS"] == "7"
    assert facts["Environment"]["HF_TOKEN"] == "***"
    assert facts["Environment"]["HF_ENDPOINT"] == "https://***/x"
    assert facts["Packages"]["numpy"] == importlib.metadata.version("numpy")
    assert str(os.cpu_count()) in facts["Processor"]["cores"]
    assert str(Path.home()) not in told or str(Path.home()) == "/"
    assert main(["collect-env"]) == 0
    text = capsys.readouterr().out
    for title in facts:
        assert f"{title}:\n" in text


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("HF_AUTH", "abc", "***"),
        ("CORE_S3_CREDENTIALS", "abc", "***"),
        ("HF_ENDPOINT", "https://mirror.example/x?token=abc", "https://***/x"),
        ("CORE_OTLP_TRACES_ENDPOINT", "collector.example:4317", "***"),
        ("CORE_HOST", "10.1.2.3", "***"),
        ("CORE_HOST", "127.0.0.1", "127.0.0.1"),
        ("HF_ENDPOINT", "http://localhost:8080/x", "http://localhost:8080/x"),
        ("HF_ENDPOINT", "http://localhost.example/x", "http://***/x"),
        ("HF_HOME", "/home/ann/hf:/Users/bob", "/home/***/hf:/Users/***"),
        ("HF_HOME", "/data/carol/hf", "/data/***/hf"),
        ("CUDA_VISIBLE_DEVICES", "0,1", "0,1"),
        ("TORCH_LOGS", "", ""),
    ],
)
def test_no_value_names_a_secret_a_user_or_a_host(monkeypatch, name, value, expected):
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.setenv("USER", "carol")
    assert hidden_value(name, value) == expected


def test_a_user_without_a_home_has_an_environment_too(monkeypatch, capsys):
    for home in ("/", ""):
        monkeypatch.setenv("HOME", home)
        monkeypatch.setenv("HF_HOME", "/models/here")
        assert main(["collect-env", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["Environment"]["HF_HOME"] == "/models/here"


def test_it_imports_no_torch():
    code = "import sys; from core.commands.main import main; main(['collect-env']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_stray_words_are_refused(capsys):
    assert main(["collect-env", "all"]) == 2
    assert "takes --json only" in capsys.readouterr().err
