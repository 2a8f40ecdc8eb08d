import io
import json
from dataclasses import replace

import pytest
from burnish.commands.bench import BenchResult, Group, Row
from burnish.commands.bench_report import FORMAT, report, to_json, verdict
from burnish.commands.intervals import Interval, median_interval
from burnish.commands.machine import Limits, Machine
from rich.console import Console


def row(name, seconds, speed=None, **fields):
    return Row(name, "1.0", fields.pop("precision", "f32"), seconds=seconds, repeats=10, prepare_seconds=0.5,
               error=2e-3, median_seconds=median_interval(seconds),
               speed=None if speed is None else Interval(speed, speed, speed, 0.95), **fields)  # fmt: skip


@pytest.fixture
def result():
    machine = Machine(
        "A CPU", 2, 2**30, {"L1d": 49152, "L2": 1 << 20}, ("avx2",), "Linux", {"python": "3.11"}
    )
    rows = (
        row("burnish", (0.010, 0.011, 0.012), speed=0.9, subject=True, algorithm="winograd4"),
        row("onnxruntime", (0.009, 0.010, 0.011), speed=1.0),
        row("openvino-bf16", (0.005, 0.005, 0.006), speed=2.0, precision="bf16"),
        Row("ncnn", "1.0", "f32", reason="no | such operator", error=float("inf")),
    )
    group = Group("resnet18", 2, 2_200_000_000, True, "onnxruntime", rows)
    limits = Limits({2: 500.0}, {2: 60.0})
    return BenchResult("2026-11-20T00:00:00+00:00", machine, limits, 3, 0, 0.1, (group,), {"burnish": "0.1"})


def test_table_shows_losses_and_failures(result):
    text = report(result).to_text()
    assert "resnet18, 2 threads, 2.2 GFLOP" in text
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert "11.0 (10.0–12.0)" in lines["burnish"] and "200 (40%)" in lines["burnish"]
    assert "0.90" in lines["burnish"] and "slower" in lines["burnish"]
    assert "winograd4" in lines["burnish"] and "algorithm" in text
    assert "fastest peer" in lines["onnxruntime"]
    assert "440 " in lines["openvino-bf16"] and "%" not in lines["openvino-bf16"]
    assert "error 2e-03 of scale" in lines["openvino-bf16"]
    assert "no | such operator" in lines["ncnn"]
    assert "burnish is slower than the fastest f32 peer: resnet18 (2 threads)" in text
    assert "measured peak, f32 multiply-add: 500 (2 threads) GFLOP/s" in text
    assert "BUSY" not in text and "shared" not in text


def test_measurements_on_one_core_are_counted(result):
    (group,) = result.groups
    result = replace(result, groups=(replace(group, shared=3),))
    assert "2.2 GFLOP, cores were shared in 3 measurements" in report(result).to_text()
    assert json.loads(to_json(result))["groups"][0]["shared"] == 3


def test_a_busy_machine_is_named(result):
    busy = BenchResult(**{**vars(result), "load": 1.9})
    assert "BUSY: a load of 1.9" in report(busy).to_text()


def test_show_without_a_terminal_prints_plain_lines(result):
    stream = io.StringIO()
    report(result).show(Console(file=stream, width=100))
    assert "\x1b" not in stream.getvalue()
    assert "burnish" in stream.getvalue()


def test_markdown_has_a_row_per_contestant(result):
    lines = report(result).to_markdown().splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == 2 + 4
    assert all(line.replace("\\|", "").count("|") == rows[0].count("|") for line in rows)
    assert "no \\| such operator" in rows[-1]


def test_json_holds_every_number_with_its_unit(result):
    document = json.loads(to_json(result))
    assert document["format"] == FORMAT
    assert document["machine"]["peak_gflops"] == {"2": 500.0}
    assert document["machine"]["caches"] == {"L1d": 49152, "L2": 1 << 20}
    assert document["versions"] == {"burnish": "0.1"}
    (group,) = document["groups"]
    assert (group["network"], group["threads"], group["flops"]) == ("resnet18", 2, 2_200_000_000)
    assert group["fastest_peer"] == "onnxruntime" and group["checked"] is True
    ours, _, bf16, failed = group["rows"]
    assert ours["seconds"] == [0.010, 0.011, 0.012]
    assert ours["median_seconds"] == {"low": 0.010, "middle": 0.011, "high": 0.012, "coverage": 0.75}
    assert ours["gflops"] == pytest.approx(200) and ours["share_of_peak"] == pytest.approx(0.4)
    assert ours["verdict"] == "slower"
    assert bf16["share_of_peak"] is None
    assert failed["reason"] == "no | such operator" and failed["error"] is None and failed["gflops"] is None


@pytest.mark.parametrize(
    "speed, word", [(1.2, "faster"), (1.02, "tie"), (0.98, "tie"), (0.9, "slower"), (None, "alone")]
)
def test_verdicts(speed, word):
    assert verdict(row("burnish", (1.0,), speed=speed)) == word


def test_what_the_rounds_do_not_tell_is_a_tie():
    made = row("burnish", (1.0,), speed=1.07)
    assert verdict(replace(made, speed=Interval(0.9, 1.07, 1.29, 0.98))) == "tie"
    assert verdict(replace(made, speed=Interval(1.01, 1.07, 1.29, 0.98))) == "faster"
    assert verdict(replace(made, speed=Interval(1.07, 1.07, 1.07, 0.0))) == "tie"  # of a single round


def test_nothing_in_markdown_is_html_or_ends_a_line(result):
    group = result.groups[0]
    odd = replace(group.rows[-1], reason="no kernel for std::vector<float> | T\n&")
    named = replace(group, network="<img src=x>\nx", rows=(*group.rows[:-1], odd))
    text = report(replace(result, groups=(named,), complete=False)).to_markdown()
    assert "**&lt;img src=x> x, 2 threads" in text and "std::vector&lt;float> \\| T &amp; |" in text
    assert "- INCOMPLETE: ended before everything was compared\n" in text
    assert json.loads(to_json(result))["complete"] is True


def test_a_failed_row_has_the_verdict_failed():
    assert verdict(Row("burnish", "1", "f32", reason="broken")) == "failed"
