"""How long the HTML report takes to write and a browser to show, and how large it is. Run on demand; prints a table.

    python tests/benchmarks/bench_html.py [--operations 1000 100000 2000000] [--sample mlp-training] [--chromium PATH]
    python tests/benchmarks/bench_html.py --recording FILE

A sample is tiled in memory to each size, and every size is measured in a process of its own. `write` is the page alone:
its timeline has that size, its tables and findings are those of a thousand operations, and no analysis is counted.
`paint` is the browser's first contentful paint from the start of the navigation, `drawn` when the timeline has been drawn,
`zoom` one frame of it after a zoom; `-` without playwright or Chromium.

With `--recording` the whole command is measured on a file, without the report and with it, in CPU seconds as well.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
DRAWN = (
    """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"""
)
ZOOM = """() => new Promise((done) => {
  const from = performance.now();
  document.querySelector("[data-do=in]").click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - from)));
})"""


def measure(path: Path, operations: int, page: Path) -> dict[str, float]:
    """Seconds to write the page of so many operations, and its bytes."""
    sys.path.insert(0, str(Path(__file__).parent))
    from bench_replay import tiled  # type: ignore[import-not-found]
    from gpu_trace_advisor.advice.build import examine
    from gpu_trace_advisor.analysis.device_window import views
    from gpu_trace_advisor.analysis.request import Request
    from gpu_trace_advisor.drawing.build import draw, draw_device
    from gpu_trace_advisor.report.html import page as html

    advice, few = examine([tiled(path, 1_000)])
    html.render(advice, draw(advice, few))  # what is compiled and imported once
    large, _ = views(tiled(path, operations), Request())
    window = large[0].window
    assert large[0].critical_path.span_ns + len(large[0].inkernel.split(window.start_ns, window.end_ns))  # analysis
    began = time.perf_counter()
    text = html.render(advice, [draw_device(large[0], advice.findings)])
    took = time.perf_counter() - began
    page.write_text(text, encoding="utf-8")
    return {"operations": len(large[0].timeline.row), "write": took, "bytes": len(text.encode())}


def shown(page: Path, chromium: str | None) -> dict[str, float]:
    """Milliseconds until a browser has painted and drawn the page; nothing where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {}
    if chromium is None:
        return {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        opened: Any = browser.new_page()
        opened.goto(page.as_uri())
        drawn = opened.evaluate(DRAWN)
        paint = opened.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN")
        zoom = min(opened.evaluate(ZOOM) for _ in range(3))
        browser.close()
    return {"paint": paint, "drawn": drawn, "zoom": zoom}


def measure_command(recording: Path, page: Path, chromium: str | None) -> None:
    """Print what the command takes without and with the report, and what the page is."""
    command = [sys.executable, "-m", "gpu_trace_advisor", str(recording), "-o", "/dev/null"]
    for name, more in (("without", []), ("with", ["--html", str(page)])):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([*command, *more], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{name:>8}: {time.perf_counter() - began:.2f} s, {cpu:.2f} s CPU")
    print(f"    page: {page.stat().st_size / 1e6:.2f} MB, {shown(page, chromium)} ms")


def main() -> None:
    """Measure each size in a process of its own and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, nargs="+", default=[1_000, 100_000, 2_000_000])
    parser.add_argument("--sample", default="mlp-training")
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    parser.add_argument("--recording", type=Path)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    sample = ROOT / "traces" / f"{given.sample}.json.gz"
    if given.one:
        print(json.dumps(measure(sample, given.operations[0], given.one)))
        return
    if given.recording:
        with tempfile.TemporaryDirectory() as folder:
            measure_command(given.recording, Path(folder, "page.html"), given.chromium)
        return
    print(f"{'operations':>12} {'write s':>8} {'MB':>6} {'paint ms':>9} {'drawn ms':>9} {'zoom ms':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for operations in given.operations:
            page = Path(folder, f"{operations}.html")
            run = [
                sys.executable,
                __file__,
                "--operations",
                str(operations),
                "--sample",
                given.sample,
                "--one",
                str(page),
            ]
            done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT)
            row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
            seen = shown(page, given.chromium)
            cells = [f"{seen[key]:,.0f}" if key in seen else "-" for key in ("paint", "drawn", "zoom")]
            print(
                f"{row['operations']:>12,.0f} {row['write']:>8.2f} {row['bytes'] / 1e6:>6.2f} "
                f"{cells[0]:>9} {cells[1]:>9} {cells[2]:>8}"
            )


if __name__ == "__main__":
    main()
