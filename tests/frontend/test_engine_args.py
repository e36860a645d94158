"""Engine arguments as an object: from keywords and command lines, to what `LLM` is called with."""

import argparse
import dataclasses
from typing import Any

import pytest

from core import AsyncEngineArgs, EngineArgs
from core_config.arguments.sources import merge
from core_frontend.library.flexible_parser import FlexibleArgumentParser


def parsed(words: str, parser: argparse.ArgumentParser | None = None) -> Any:
    parser = EngineArgs.add_cli_args(parser or FlexibleArgumentParser())
    return EngineArgs.from_cli_args(parser.parse_args(words.split()))


def test_nothing_given_is_the_same_as_no_arguments() -> None:
    for made in (EngineArgs(), AsyncEngineArgs(), parsed("")):
        merged = merge(dataclasses.asdict(made), {})
        plain = merge({}, {})
        assert merged.problems == merged.warnings == []
        assert {name: merged.value(name) for name in merged.values} == {
            name: plain.value(name) for name in plain.values
        }
        assert made.given == {}


def test_what_a_command_line_gives_is_what_llm_gets() -> None:
    made = parsed(
        "--model some/model --max_model_len 1k --no-enable-prefix-caching --kernels a b -tp 1 "
        "--speculative-config.method ngram --speculative_config.num_speculative_tokens=3"
    )
    assert made.given == {
        "model": "some/model",
        "max_model_len": 1000,
        "enable_prefix_caching": False,
        "kernels": ["a", "b"],
        "tensor_parallel_size": 1,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    }
    assert made.tensor_parallel_size == 1
    assert merge(dataclasses.asdict(made), {}).problems == []


def test_plain_argparse_serves_as_well() -> None:
    made = parsed("--max-model-len 512 --enforce-eager", argparse.ArgumentParser())
    assert made.given == {"max_model_len": 512, "enforce_eager": True}


def test_a_parser_keeps_its_own_arguments() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=float, dest="own", default=0.5)
    args = EngineArgs.add_cli_args(parser).parse_args(["--seed", "2"])
    assert args.own == 2.0
    assert EngineArgs.from_cli_args(args).given == {}


def test_what_is_not_served_is_refused_by_name_later() -> None:
    merged = merge(dataclasses.asdict(EngineArgs(model="m", prefill_context_parallel_size=2)), {})
    assert len(merged.problems) == 1
    assert (
        "prefill_context_parallel_size 2: this engine does not serve it yet: tokens of a prompt are not divided"
        in merged.problems[0]
    )


def test_mistakes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TypeError, match="no_such"):
        EngineArgs(no_such=1)
    with pytest.raises(TypeError, match="port"):
        EngineArgs(port=1)
    with pytest.raises(TypeError, match=r"no argument 'modle'. Did you mean 'model'"):
        EngineArgs(modle="m")
    with pytest.raises(TypeError, match="args is a dict; expected what parse_args returns"):
        EngineArgs.from_cli_args({"model": "m"})
    for words, sentence in {
        "--max-model-len much": "--max-model-len: ",
        "--speculative-config.method": "--speculative-config.method: expected one argument",
        "--speculative-config.a 1 --speculative-config.a.b 2": "'a' has a value already",
    }.items():
        with pytest.raises(SystemExit):
            parsed(words)
        assert sentence in capsys.readouterr().err
