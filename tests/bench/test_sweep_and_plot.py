"""Sweeps over commands, and charts of their results."""

import csv
import json
import os
import re
import shlex
import sys
import time
import xml.etree.ElementTree as ElementTree

import pytest

from core.api.errors import UserError
from core.commands.main import main
from core_commands.bench.plot import frontier, lines_of, marks, read_rows, svg
from core_commands.bench.sweep import combinations, name_of, sweep
from core_commands.bench.sweep_options import SweepOptions
from core_commands.bench.sweep_runs import SweepError, words_of

BENCH = """
import json, os, sys
words = sys.argv[1:]
value = dict(zip(words, words[1:]))
place = os.path.join(value["--result-dir"], value["--result-filename"])
if "--fail" in words:
    sys.exit(3)
os.makedirs(value["--result-dir"], exist_ok=True)
server = open(os.environ["SERVER_FILE"]).read() if os.path.exists(os.environ["SERVER_FILE"]) else ""
json.dump({"request_rate": float(value["--request-rate"]), "output_throughput": 7.0, "itls": [1], "server": server},
          open(place, "w"))
"""
SERVER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
open(os.environ["SERVER_FILE"], "w").write(" ".join(sys.argv[1:]))
time.sleep(60)
"""


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVER_FILE", str(tmp_path / "server"))
    (tmp_path / "bench.py").write_text(BENCH)
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "bench.json").write_text('[{"request_rate": 1}, {"request_rate": 2}]')
    return tmp_path


def options(place, **changes):
    values = {
        "output_dir": str(place / "out"),
        "bench_cmd": f"{sys.executable} {place}/bench.py",
        "bench_params": str(place / "bench.json"),
        "num_runs": 2,
    }
    return SweepOptions(**(values | changes))


def test_every_combination_runs_and_a_table_has_all(commands, capfd):
    rows = sweep(options(commands))
    assert [(row["request_rate"], row["run_number"]) for row in rows] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    with (commands / "out" / "summary.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["output_throughput"] for row in table] == ["7.0"] * 4
    assert "itls" not in table[0]
    with pytest.raises(UserError, match="--resume"):
        sweep(options(commands))
    (commands / "out" / "request_rate=2" / "run1.json").unlink()
    capfd.readouterr()
    assert len(sweep(options(commands, resume=True))) == 4
    assert capfd.readouterr().out.count("--request-rate") == 1


def test_a_server_runs_for_its_measurements_with_its_arguments(commands):
    (commands / "serve.json").write_text('[{"max_num_seqs": 2, "prefix": true}]')
    command = f"{sys.executable} {commands}/server.py"
    changes = {"serve_cmd": command, "serve_params": str(commands / "serve.json"), "num_runs": 1}
    rows = sweep(options(commands, bench_cmd=f"{sys.executable} {commands}/bench.py", **changes))
    assert {row["max_num_seqs"] for row in rows} == {2}
    assert rows[-1]["server"] in ("--max-num-seqs 2 --prefix", "")  # it may not have come that far


def test_no_measurement_finds_the_prompts_of_another_one_in_the_cache(commands, capsys):
    sweep(options(commands, dry_run=True))
    assert re.findall(r"--seed (\d)", capsys.readouterr().out) == ["0", "1", "2", "3"]
    sweep(options(commands, dry_run=True, bench_cmd="core bench serve --seed=7"))
    shown = capsys.readouterr().out
    assert "core bench serve --seed=7 --request-rate 1 --save-result" in shown, "the command as a person types it"


def test_a_server_speaks_into_a_file(commands, capfd):
    (commands / "server.py").write_text("print('no such model'); raise SystemExit(2)")
    (commands / "bench.py").write_text("import time; time.sleep(30)")
    command = f"{sys.executable} {commands}/server.py"
    with pytest.raises(SweepError, match=r"ended with code 2 before .*server0\.log"):
        sweep(options(commands, serve_cmd=command))
    assert (commands / "out" / "server0.log").read_text() == "no such model\n"
    assert "no such model" not in capfd.readouterr().out


def test_a_failure_ends_the_sweep_and_leaves_no_process(commands):
    (commands / "bench.json").write_text('[{"request_rate": 1, "fail": true}]')
    with pytest.raises(SweepError, match="ended with code 3"):
        sweep(options(commands))
    (commands / "bench.json").write_text('[{"request_rate": 1}]')
    with pytest.raises(UserError, match="cannot be started"):
        sweep(options(commands, serve_cmd="/nowhere/server", output_dir=str(commands / "other")))


def test_commands_that_are_not_there_and_results_that_are_cut_are_sentences(commands):
    with pytest.raises(UserError, match="--bench-cmd /nowhere/bench: cannot be started"):
        sweep(options(commands, bench_cmd="/nowhere/bench"))
    sweep(options(commands))
    cut = commands / "out" / "request_rate=1" / "run0.json"
    cut.write_text(cut.read_text()[:5])
    with pytest.raises(UserError, match=r"run0\.json: no result of a measurement"):
        sweep(options(commands, resume=True))


def test_what_a_server_has_started_ends_with_it(commands):
    child = "import os, time; open(os.environ['SERVER_FILE'], 'w').write(str(os.getpid())); time.sleep(60)"
    (commands / "child.py").write_text(child)
    script = f"{sys.executable} {commands}/child.py & trap 'exit 0' TERM; wait"
    command = shlex.join(["sh", "-c", script])
    waits = "import os, time\nwhile not os.path.exists(os.environ['SERVER_FILE']): time.sleep(0.01)\n"
    (commands / "bench.py").write_text(waits + BENCH)
    sweep(options(commands, serve_cmd=command, num_runs=1))
    number = int((commands / "server").read_text())
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{number}") and "Z" not in _state(number):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _state(number):
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_dry_run_prints_commands_only(commands, capsys):
    assert sweep(options(commands, dry_run=True, num_runs=1)) == []
    assert capsys.readouterr().out.count("--save-result") == 2
    assert not (commands / "out").exists()


@pytest.mark.parametrize("text, expected", [("{}", "JSON list"), ("[]", "empty"), ("[1]", "JSON list"), ("x", "JSON")])
def test_wrong_parameters_are_sentences(commands, text, expected):
    (commands / "bench.json").write_text(text)
    with pytest.raises(UserError, match=expected):
        sweep(options(commands))


def test_words_and_names(tmp_path):
    assert words_of({"_benchmark_name": "x", "a_b": 1, "on": True, "off": False, "l": ["a", 2], "o": {"k": 1}}) == [
        "--a-b", "1", "--on", "--no-off", "--l", "a", "2", "--o", '{"k":1}',
    ]  # fmt: skip
    assert name_of({"_benchmark_name": "my/../run"}) == "my_.._run"
    with pytest.raises(UserError, match="_benchmark_name"):
        combinations([{}], [{"_benchmark_name": "x"}, {"_benchmark_name": "x", "a": 1}], 1, tmp_path)


def result(rate, value, **more):
    return {"request_rate": rate, "output_throughput": value, "median_ttft_ms": 5.0, "p99_itl_ms": 1.0, **more}


def test_a_picture_has_every_point(tmp_path, capsys):
    rows = [
        result(1, 10, m="a"),
        result(2, 30, m="a"),
        result(2, 10, m="a"),
        result(1, 5, m="<b>"),
        result("inf", 1, m="a"),
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert lines_of(rows, "request_rate", "output_throughput", ["m"]) == {"m=a": [(1, 10), (2, 20)], "m=<b>": [(1, 5)]}
    assert main(["bench", "plot", str(tmp_path / "rows.jsonl"), "--by", "m", "-o", str(tmp_path / "plot.svg")]) == 0
    picture = ElementTree.parse(tmp_path / "plot.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert len(picture.findall(f"{space}circle")) == 3 * 3
    texts = [element.text for element in picture.iter(f"{space}text")]
    assert {"output_throughput", "median_ttft_ms", "request_rate", "m=<b>"} <= set(texts)
    for circle in picture.iter(f"{space}circle"):
        assert 0 <= float(circle.get("cx")) <= float(picture.get("width"))
        assert 0 <= float(circle.get("cy")) <= float(picture.get("height"))


SLOWER = BENCH.replace('"output_throughput": 7.0', '"p99_ttft_ms": 100 * float(value["--request-rate"])')


def test_the_highest_load_that_keeps_to_a_limit_is_found(commands, capfd):
    (commands / "bench.py").write_text(SLOWER)
    searched = options(
        commands, bench_params=None, sla=["p99_ttft_ms<=530"], serve_cmd=f"{sys.executable} {commands}/server.py"
    )
    rows = sweep(searched)
    (found,) = json.loads((commands / "out" / "sla.json").read_text())
    assert 5.0 <= found["request_rate"] <= 5.3
    assert {row["request_rate"] for row in rows} >= {1.0, 2.0, 4.0, 8.0}
    assert "is the highest that keeps to p99_ttft_ms<=530" in capfd.readouterr().out
    times = {path: path.stat().st_mtime_ns for path in (commands / "out").rglob("run*.json")}
    assert sweep(options(commands, bench_params=None, sla=["p99_ttft_ms<=530"], resume=True)) == rows
    assert times == {path: path.stat().st_mtime_ns for path in (commands / "out").rglob("run*.json")}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sla": ["p99_ttft_ms"], "bench_params": None}, "such as p99_ttft_ms<=500"),
        ({"sla": ["a<1"], "dry_run": True}, "--dry-run"),
        ({"sla": ["a<1"], "sla_from": 9.0, "sla_to": 8.0}, "--sla-from 9"),
        ({"sla": ["output_through>1"], "bench_params": None}, "output_throughput"),
        ({"sla": ["a<1"]}, "leave it out there"),
    ],
)
def test_searches_that_cannot_be_are_sentences(commands, changes, words):
    with pytest.raises(UserError, match=re.escape(words)):
        sweep(options(commands, **changes))


def test_the_frontier_has_what_nothing_beats(tmp_path, capsys):
    points = [(1.0, 5.0), (2.0, 4.0), (3.0, 4.5), (4.0, 1.0), (4.0, 0.5)]
    assert frontier(points, "output_throughput_per_user", "output_throughput") == [(1.0, 5.0), (3.0, 4.5), (4.0, 1.0)]
    assert frontier(points, "p99_ttft_ms", "output_throughput") == [(1.0, 5.0)]
    rows = [
        {"output_throughput": speed, "max_concurrency": users} for speed, users in ((10, 1), (30, 4), (25, 5), (40, 8))
    ]
    (tmp_path / "results.json").write_text(json.dumps(rows))
    assert main(["bench", "plot", str(tmp_path / "results.json"), "--pareto", "-o", str(tmp_path / "a.svg")]) == 0
    assert (tmp_path / "a.svg").read_text().count("<circle") == 3


def test_a_field_that_some_results_lack_makes_a_line_of_its_own():
    rows = [result(1, 10, max_num_seqs=4), result(1, 5)]
    lines = lines_of(rows, "request_rate", "output_throughput", ["max_num_seqs"])
    assert lines == {"max_num_seqs=4": [(1, 10)], "max_num_seqs=unset": [(1, 5)]}


@pytest.mark.parametrize("high", [0, 1e-14, 5e-324, 0.003, 1, 3.7, 10, 99, 100, 1234.5, 1e9])
def test_marks_are_few_round_and_cover_all(high):
    found = marks(0.0, high)
    assert 2 <= len(found) <= 7 and found[0] == 0 and found[-1] >= high
    if high < 1e-9:
        return
    step = found[1]
    assert re.fullmatch(r"[125]0*", f"{step:.0f}" if step >= 1 else f"{step:.12f}".rstrip("0").lstrip("0.") or "1")


def test_results_that_cannot_be_drawn_are_sentences(tmp_path, capsys):
    (tmp_path / "bad.json").write_text("[1]")
    (tmp_path / "one.json").write_text(json.dumps(result("inf", 1)))
    for words, expected in [
        ([str(tmp_path / "absent")], "cannot be read"),
        ([str(tmp_path / "bad.json")], "no result"),
        ([], "no result to draw"),
        ([str(tmp_path / "one.json")], "max_concurrency"),
        ([str(tmp_path / "one.json"), "-y", "outputt_throughput"], "unknown argument"),
        ([str(tmp_path / "one.json"), "--y", "outputt_throughput"], "Did you mean 'output_throughput'"),
    ]:
        assert main(["bench", "plot", *words]) == 2
        assert expected in capsys.readouterr().err
    assert svg({"y": {"": [(0.0, 0.0)]}}, "x").startswith("<svg")
    assert read_rows([str(tmp_path / "one.json")])
