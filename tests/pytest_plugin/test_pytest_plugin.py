"""The pytest plugin, run by pytest on small test suites."""

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gpu_trace_advisor.pytest_plugin.fixture
import gpu_trace_advisor.report.html.page
import pytest
from gpu_trace_advisor.ingest import read

from tests.build import call, kernel, op, step, written
from tests.drawn import drawn
from traces.simulate import simulate
from traces.write_kineto import write_kineto

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module", autouse=True)
def imported(sample: Callable[[str], Path]) -> None:
    """What an analysis imports stays imported: pytester forgets what its runs import."""
    gpu_trace_advisor.report.html.page.render(*drawn(read(sample("training-dataloader"))))


@pytest.fixture
def suite(pytester: pytest.Pytester, sample: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder for a suite with the sample trace `run.json.gz`: 4 steps of 49 kernels, 47.24 % of the wall in the
    loader, 47.64 % idle, 50 launches a step."""
    monkeypatch.delenv("CI", raising=False)
    (pytester.path / "run.json.gz").write_bytes(sample("training-dataloader").read_bytes())
    return pytester


def checks(pytester: pytest.Pytester, limits: str, body: str = 'efficiency.check("run.json.gz")') -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.efficiency({limits})
        def test_it(efficiency):
            {body}
        """
    )


@pytest.mark.parametrize(
    ("limits", "passes"),
    [
        ("kernels=50", True),
        ("kernels=49", True),
        ("kernels=48", False),
        ('idle="47.7%"', True),
        ('idle="47.6%"', False),
        ('step="29.821 ms"', True),
        ('step="29.820 ms"', False),
        ('busy={"min": "52.3%"}', True),
        ('busy={"min": "52.4%"}', False),
        ('idle="1%", level="warn"', True),
        ('launches=50, syncs=0, exposed_communication="0%"', True),
    ],
)
def test_under_at_and_over_limits(suite: pytest.Pytester, limits: str, passes: bool) -> None:
    checks(suite, limits)
    suite.runpytest("-p", "no:xdist").assert_outcomes(passed=int(passes), failed=int(not passes))


def test_what_fails_says_limit_found_and_evidence_and_no_traceback(suite: pytest.Pytester) -> None:
    checks(suite, 'idle="10%", launches=200')
    result = suite.runpytest()
    result.stdout.fnmatch_lines(
        [
            "efficiency: idle 47.64 %, limit ≤ 10 % (device 0): exceeded by 37.64 points; first: gap of 22.019 ms *dataloader*",
            "*= efficiency =*",
            "test * what * found * limit*",
            "*::test_it * idle * 47.64 % * ≤ 10 % * BROKEN",
            "*::test_it * launches * 50 per step * ≤ 200",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*During handling*")


def test_limits_come_from_class_test_and_call_the_nearest_last(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest

        @pytest.mark.efficiency(kernels=1, launches=1)
        class TestAll:
            @pytest.mark.efficiency(kernels=49)
            def test_it(self, efficiency):
                advice = efficiency.check("run.json.gz", launches=50)
                assert advice.devices[0].kernels == 196
        """
    )
    suite.runpytest().assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ('idel="10%"', "limits: idel: no such thing to limit; did you mean *idle*"),
        ("idle=10", 'idle = 10: give it as "10%" or "0.5 ms"'),
        ('"10%"', "takes limits by name"),
        ('unknown="perhaps"', "unknown='perhaps': expected error, ok"),
    ],
)
def test_wrong_limits_fail_the_one_test(suite: pytest.Pytester, limits: str, message: str) -> None:
    checks(suite, limits)
    suite.makepyfile(test_other="def test_other(): pass")
    result = suite.runpytest()
    result.stdout.fnmatch_lines([f"*{message}*"])
    assert result.parseoutcomes()["passed"] == 1


def test_a_broken_trace_fails_the_one_test_with_a_message(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        def test_broken(efficiency):
            efficiency.check("test_broken.py", idle="10%")

        def test_empty(efficiency, tmp_path):
            (tmp_path / "e.json").write_text('{"traceEvents": []}')
            efficiency.check(tmp_path / "e.json", idle="10%")

        def test_fine(efficiency):
            efficiency.check("run.json.gz", kernels=49)
        """
    )
    result = suite.runpytest()
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["efficiency: *.py: *", "efficiency: e.json: no events in it*"])


@pytest.mark.parametrize("arguments", ["", "efficiency"])
def test_a_marked_test_that_measures_nothing_fails(suite: pytest.Pytester, arguments: str) -> None:
    suite.makepyfile(
        f"import pytest\n@pytest.mark.efficiency(idle='1%')\ndef test_it({arguments}): pass\ndef test_other(): pass"
    )
    result = suite.runpytest()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*nothing was measured: use the fixture's efficiency.record() or efficiency.check()"])


def test_unmarked_suites_show_nothing(suite: pytest.Pytester) -> None:
    suite.makepyfile("def test_it(): pass")
    suite.runpytest().stdout.no_fnmatch_line("*efficiency*")


def test_several_recordings_count_by_their_median(suite: pytest.Pytester) -> None:
    for n in (1, 2, 9):
        events = [
            event
            for i in range(n)
            for event in (call(i * 50, i * 50 + 5, i + 1), kernel(i * 50 + 9, i * 50 + 19, i + 1))
        ]
        written(suite.path / f"{n}.json", *events)
    checks(suite, "kernels=2", 'efficiency.check("1.json", "9.json", "2.json")')
    suite.runpytest().assert_outcomes(passed=1)
    checks(suite, "kernels=2, aggregate='worst'", 'efficiency.check("1.json", "9.json", "2.json")')
    suite.runpytest().assert_outcomes(failed=1)


# Baselines


def generated(path: Path, seed: int, *, loader: bool = True) -> None:
    write_kineto(simulate("training-dataloader", steps=10, jitter=0.02, seed=seed, loader=loader), path)


def test_a_missing_baseline_is_written_and_then_held(suite: pytest.Pytester) -> None:
    generated(suite.path / "run.json.gz", 1, loader=False)
    checks(suite, 'against="decode"')
    first = suite.runpytest()
    first.assert_outcomes(passed=1)
    first.stdout.fnmatch_lines(["*baseline efficiency?decode.json written: 1 run on Tesla V100-SXM2-16GB, commit it"])
    path = suite.path / "efficiency" / "decode.json"
    kept = path.read_text(encoding="utf-8")
    generated(suite.path / "run.json.gz", 2, loader=False)
    second = suite.runpytest()
    second.assert_outcomes(passed=1)
    second.stdout.fnmatch_lines(["*::test_it * against * no difference beyond noise * efficiency?decode.json"])
    second.stdout.fnmatch_lines(["*single run before*"])
    generated(suite.path / "run.json.gz", 3)
    third = suite.runpytest()
    third.assert_outcomes(failed=1)
    third.stdout.fnmatch_lines(
        ["efficiency: against efficiency?decode.json: regressed: step time *mostly data loader*"]
    )
    assert path.read_text(encoding="utf-8") == kept


def test_in_ci_a_missing_baseline_fails_and_is_not_written(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    checks(suite, 'against="decode"')
    result = suite.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["efficiency: no baseline efficiency?decode.json, and CI does not write one*"])
    assert not (suite.path / "efficiency").exists()
    suite.runpytest("--efficiency-update").assert_outcomes(passed=1)
    suite.runpytest().assert_outcomes(passed=1)


def runs(path: Path) -> dict[str, int]:
    return {name: len(found) for name, found in json.loads(path.read_text(encoding="utf-8"))["hardware"].items()}


def test_an_update_adds_a_run_that_does_not_differ_and_starts_anew_with_one_that_does(suite: pytest.Pytester) -> None:
    checks(suite, 'against="decode"')
    path = suite.path / "kept" / "decode.json"
    for seed, loader, count in ((1, True, 1), (2, True, 2), (3, True, 3), (4, False, 1)):
        generated(suite.path / "run.json.gz", seed, loader=loader)
        suite.runpytest("--efficiency-update", "--efficiency-baselines", "kept").assert_outcomes(passed=1)
        assert runs(path) == {"Tesla V100-SXM2-16GB": count}


def other_gpu(suite: pytest.Pytester) -> None:
    """The baseline becomes one of another GPU."""
    path = suite.path / "efficiency" / "decode.json"
    path.write_text(path.read_text(encoding="utf-8").replace("Tesla V100-SXM2-16GB", "NVIDIA H100"), encoding="utf-8")


def test_on_another_gpu_counts_are_held_and_times_are_not(suite: pytest.Pytester) -> None:
    checks(suite, 'against="decode"')
    generated(suite.path / "run.json.gz", 1, loader=False)
    suite.runpytest()
    other_gpu(suite)
    generated(suite.path / "run.json.gz", 2)  # slower, with a copy no more and no less
    slower = suite.runpytest()
    slower.assert_outcomes(passed=1)
    slower.stdout.fnmatch_lines(["*is of NVIDIA H100, this is Tesla V100-SXM2-16GB: counts are held, times are not*"])
    path = suite.path / "efficiency" / "decode.json"
    path.write_text(re.sub(r'"launches": \d+', '"launches": 1', path.read_text(encoding="utf-8")), encoding="utf-8")
    more = suite.runpytest()
    more.assert_outcomes(failed=1)
    more.stdout.fnmatch_lines(["efficiency: against *: launches per step grew: 0.1 → 50 (device 0)"])


def test_an_update_on_another_gpu_keeps_both(suite: pytest.Pytester) -> None:
    checks(suite, 'against="decode"')
    suite.runpytest()
    other_gpu(suite)
    suite.runpytest("--efficiency-update").assert_outcomes(passed=1)
    assert runs(suite.path / "efficiency" / "decode.json") == {"NVIDIA H100": 1, "Tesla V100-SXM2-16GB": 1}


def test_with_few_steps_counts_are_held(suite: pytest.Pytester) -> None:
    def recording(launches: int, length: int) -> None:
        events = []
        for n in range(3):
            at = n * 1000
            events.append(step(n, at, at + length))
            for i in range(launches):
                place, id_ = at + i * 50, n * 100 + i + 1
                events += [call(place, place + 5, id_), kernel(place + 9, place + 19, id_)]
        written(suite.path / "few.json", *events)

    checks(suite, 'against="few"', 'efficiency.check("few.json")')
    recording(2, 900)
    suite.runpytest().assert_outcomes(passed=1)
    recording(2, 901)
    same = suite.runpytest()
    same.assert_outcomes(passed=1)
    same.stdout.fnmatch_lines(["*3 steps before and 3 after*times are not held, counts are"])
    recording(3, 900)
    more = suite.runpytest()
    more.assert_outcomes(failed=1)
    more.stdout.fnmatch_lines(["efficiency: against *: kernels per step grew: 2 → 3", "*launches per step grew: 2 → 3"])


def test_a_damaged_baseline_fails_the_one_test(suite: pytest.Pytester) -> None:
    (suite.path / "efficiency").mkdir()
    (suite.path / "efficiency" / "decode.json").write_text("{}", encoding="utf-8")
    checks(suite, 'against="decode"')
    suite.runpytest().stdout.fnmatch_lines(["efficiency: *decode.json: not a baseline of version 1*"])


def test_parametrised_tests_have_a_baseline_each_and_results_come_back_from_workers(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("size", ["small", "la/rge"])
        @pytest.mark.efficiency(against="decode", kernels=49)
        def test_it(efficiency, size):
            efficiency.check("run.json.gz")
        """
    )
    result = suite.runpytest("-n", "2")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*::test_it?la/rge? * kernels * 49 per step * ≤ 49"])
    assert sorted(path.name for path in (suite.path / "efficiency").iterdir()) == [
        "decode@la-rge-0a778a81.json",
        "decode@small.json",
    ]


def test_a_rerun_counts_once(suite: pytest.Pytester) -> None:
    pytest.importorskip("pytest_rerunfailures")
    suite.makepyfile(
        """
        import pytest
        seen = []

        @pytest.mark.efficiency(kernels=49)
        def test_it(efficiency):
            efficiency.check("run.json.gz")
            seen.append(1)
            assert len(seen) == 2
        """
    )
    result = suite.runpytest("--reruns", "1")
    assert result.parseoutcomes() == {"passed": 1, "rerun": 1}
    assert sum("49 per step" in line for line in result.outlines) == 1


# What it leaves behind


def test_properties_for_junit(suite: pytest.Pytester) -> None:
    checks(suite, 'idle="10%", kernels=49')
    suite.runpytest("--junitxml=out.xml")
    found = ElementTree.parse(suite.path / "out.xml").iter("property")
    assert {(p.get("name"), p.get("value")) for p in found} == {
        ("efficiency.idle", "47.64 %; ≤ 10 %; BROKEN"),
        ("efficiency.kernels", "49 per step; ≤ 49; "),
    }


def test_a_report_for_each_test(suite: pytest.Pytester) -> None:
    checks(suite, "kernels=48")
    suite.runpytest("--efficiency-html", "reports").assert_outcomes(failed=1)
    (page,) = (suite.path / "reports").iterdir()
    assert page.name.startswith("test_a_report_for_each_test.py-test_it-")
    assert "<html" in page.read_text(encoding="utf-8")


def test_options_and_marker_explain_themselves(suite: pytest.Pytester) -> None:
    options = suite.runpytest("--help").stdout.str()
    for name in ("update", "html=DIR", "require-gpu", "baselines=DIR"):
        assert f"--efficiency-{name}" in options
    suite.runpytest("--markers").stdout.fnmatch_lines(["@pytest.mark.efficiency(idle=*"])


def test_the_plugin_loads_nothing_heavy() -> None:
    code = (
        "import sys, gpu_trace_advisor.pytest_plugin.plugin; "
        "heavy = {'numpy', 'torch', 'pandas', 'gpu_trace_advisor.pytest_plugin.fixture'}; "
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_recording_without_torch_says_what_to_install(suite: pytest.Pytester) -> None:
    (suite.path / "torch.py").write_text("raise ImportError('no torch here', name='torch')\n", encoding="utf-8")
    suite.makepyfile("def test_it(efficiency):\n    with efficiency.record(): pass")
    suite.makeini("[pytest]\npythonpath = .")
    result = suite.runpytest_subprocess("-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["efficiency: recording needs PyTorch: pip install 'gpu-trace-advisor?torch?'"])


@pytest.mark.slow
def test_the_installed_plugin_checks_files_without_torch(
    project_files: list[Path], root: Path, suite: pytest.Pytester
) -> None:
    """As a wheel put on the path alone, with its entry point."""
    import shutil

    links = [root / "analyzer" / "gpu_trace_advisor" / name for name in ("rules", "templates")]
    for path in [*project_files, *links]:
        copy = suite.path / "project" / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy, follow_symlinks=False)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "project"]
    subprocess.run(build, cwd=suite.path, capture_output=True, check=True)
    (wheel,) = (suite.path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        entry = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "[pytest11]\nadvise = gpu_trace_advisor.pytest_plugin.plugin" in archive.read(entry).decode()
        archive.extractall(suite.path / "site")
    shutil.rmtree(suite.path / "project")
    checks(suite, "kernels=48")
    code = (
        "import sys; sys.path.insert(0, 'site'); import gpu_trace_advisor, pytest; "
        "assert 'site' in gpu_trace_advisor.__file__, gpu_trace_advisor.__file__; "
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=suite.path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "kernels per step 49, limit ≤ 48" in done.stdout


def test_each_test_has_its_own_baseline(suite: pytest.Pytester) -> None:
    """Whatever stands in its name, and however long that is."""
    names = ["a/b", "a-b", "..", "x" * 300, "x" * 299 + "y", "\\x1b[31m"]
    suite.makepyfile(
        f"""
        import pytest

        @pytest.mark.parametrize("name", {names!r}, ids=range({len(names)}))
        def test_it(efficiency, name):
            efficiency.check("run.json.gz", against=name)

        @pytest.mark.parametrize("case", ["b", "c/d"])
        def test_case(efficiency, case):
            efficiency.check("run.json.gz", against="a")
        """
    )
    suite.runpytest("--efficiency-update", "--efficiency-html", "pages").assert_outcomes(passed=len(names) + 2)
    assert [set(runs(path).values()) for path in (suite.path / "efficiency").iterdir()] == [{1}] * (len(names) + 2)
    assert len(list((suite.path / "pages").iterdir())) == len(names) + 2


def test_workers_add_to_one_baseline_and_none_is_lost(suite: pytest.Pytester) -> None:
    for n in range(4):
        generated(suite.path / f"{n}.json.gz", n + 1, loader=False)
    suite.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("n", range(4))
        def test_it(efficiency, n, request):
            del request.node.callspec
            efficiency.check(f"{n}.json.gz", against="one")
        """
    )
    suite.runpytest_subprocess("--efficiency-update", "-n", "4", "-p", "no:cacheprovider").assert_outcomes(passed=4)
    assert list(runs(suite.path / "efficiency" / "one.json").values()) == [4]


def test_a_capture_tells_the_operators_of_a_replay(suite: pytest.Pytester) -> None:
    """One product of 64 x 4096 and 4096 x 1024 in a graph."""
    shapes = {"Input Dims": [[64, 4096], [4096, 1024]], "Input type": ["c10::BFloat16"] * 2}
    size: dict[str, Any] = {"grid": [8, 1, 1], "block": [256, 1, 1]}
    written(
        suite.path / "capture.json", call(0, 1, 0, "hipStreamBeginCapture"), op("aten::mm", 2, 8, **shapes),
        call(3, 5, 1, "hipLaunchKernel", kernel="bf16_gemm", **size), call(9, 10, 0, "hipStreamEndCapture"),
    )  # fmt: skip
    written(suite.path / "replay.json", call(0, 10, 5, "hipGraphLaunch"), kernel(20, 60, 5, "bf16_gemm", **size))
    body = """
            advice = efficiency.check("replay.json", capture="capture.json")
            row, = advice.devices[0].inside_kernels.rows
            assert (row.flops, row.captured) == (2 * 64 * 4096 * 1024, 1)"""
    checks(suite, 'idle="50%"', body.strip())
    suite.runpytest().assert_outcomes(passed=1)
