"""The recorder: when the profiler runs, with one that only keeps notes; and PyTorch recorded for real where it is there."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gpu_trace_advisor
import pytest
from gpu_trace_advisor.api import advise
from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.gate.budget import Budget, check, limits_of
from gpu_trace_advisor.record import Recorder, Settings, record, told
from gpu_trace_advisor.record.script import main

pytest_plugins = ["pytester"]


class Notes:
    """Stands for torch: writes down what it is asked for."""

    def __init__(self, gpu: bool = False) -> None:
        self.calls: list[str] = []
        self.cuda = SimpleNamespace(is_available=lambda: gpu, synchronize=lambda: self.calls.append("synchronize"))
        self.profiler = SimpleNamespace(
            ProfilerActivity=SimpleNamespace(CPU="CPU", CUDA="CUDA"),
            schedule=lambda **kwargs: kwargs,
            profile=self.profile,
        )

    def profile(self, **settings: Any) -> Any:
        self.settings = settings
        return SimpleNamespace(
            start=lambda: self.calls.append("start"),
            stop=lambda: self.calls.append("stop"),
            step=lambda: self.calls.append("step"),
            export_chrome_trace=lambda path: Path(path).write_text("{}", encoding="utf-8"),
        )


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Notes:
    notes = Notes(gpu=True)
    monkeypatch.setattr("gpu_trace_advisor.record.import_torch", lambda: notes)
    return notes


# When the profiler runs


def test_warm_up_runs_without_the_profiler_and_both_ends_are_synchronised(torch: Notes, tmp_path: Path) -> None:
    bodies = 0
    with record(tmp_path / "t.json", steps=2, warmup=2) as steps:
        torch.calls.clear()
        for number in steps:
            torch.calls.append(f"body {number}")
            bodies += 1
    assert torch.calls == [
        "stop",  # of what ran in the block before the loop
        "body 0", "body 1", "synchronize", "start",
        "body 2", "synchronize", "step",  # thrown away by the profiler
        "body 3", "step", "body 4", "synchronize", "step", "synchronize", "stop",
    ]  # fmt: skip
    assert torch.settings["schedule"] == {"wait": 0, "warmup": 1, "active": 2, "repeat": 1}
    assert bodies == 5


def test_a_block_without_steps_is_recorded_as_it_is(torch: Notes, tmp_path: Path) -> None:
    with record(tmp_path / "t.json") as recording:
        torch.calls.append("body")
    assert torch.calls == ["synchronize", "start", "body", "synchronize", "stop"]
    assert torch.settings["schedule"] is None
    assert recording.written == [tmp_path / "t.json"]


@pytest.mark.parametrize(
    ("gpu", "device", "activities"), [(True, "auto", ["CPU", "CUDA"]), (True, "cpu", ["CPU"]), (False, "auto", ["CPU"])]
)
def test_the_gpu_is_recorded_where_there_is_one(
    torch: Notes, tmp_path: Path, gpu: bool, device: str, activities: list[str]
) -> None:
    torch.cuda.is_available = lambda: gpu
    with record(tmp_path / "t.json", device=device) as recording:
        pass
    assert torch.settings["activities"] == activities
    assert recording.gpu == ("CUDA" in activities)


def test_a_block_that_fails_leaves_no_file(torch: Notes, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), record(tmp_path / "t.json"):
        raise ZeroDivisionError
    assert torch.calls[-1] == "stop"
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_said_before_anything_is_recorded(torch: Notes, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file/t.json", "file/deep/t.json"):
        with pytest.raises(BadUsage, match=r"t\.json: cannot be written: Not a directory"), record(tmp_path / place):
            pass
    assert torch.calls == []


@pytest.mark.parametrize("ending", [KeyboardInterrupt, ValueError])
def test_the_whole_of_a_script_that_is_ended_is_kept(
    ending: type[BaseException], torch: Notes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, trace = tmp_path / "serve.py", tmp_path / "t.json"
    script.write_text(f"raise {ending.__name__}", encoding="utf-8")
    with pytest.raises(ending):
        main(["-o", str(trace), "--step", "none", "--", str(script)])
    assert torch.calls == ["start", "synchronize", "stop"]
    assert trace.read_text(encoding="utf-8") == "{}"
    assert capsys.readouterr().err == f"record: {trace}: the whole script, its start included\n"


def test_the_cost_of_recording_is_the_recorded_step_over_the_plain_one(torch: Notes, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "t.json", Settings(steps=3, warmup=3))
    recorder._plain, recorder._recorded = [9.0, 2.0, 2.0], [3.0, 2.5, 9.0]
    assert recorder.overhead == 0.5  # 3.0 over 2.0: the first half of the warm-up is not settled yet
    assert "made a step 50 % longer (3,000.000 ms, 2,000.000 ms without it)" in told(recorder)
    recorder._plain = []
    assert recorder.overhead is None
    assert "what recording costs is unknown" in told(recorder)


def test_steps_of_every_cycle_are_timed_and_no_others(torch: Notes, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "t.json", Settings(steps=2, warmup=1, wait=2, repeat=2))
    recorder.begin()
    assert recorder.total == 1 + 2 * (2 + 1 + 2)
    for _ in range(20):
        recorder.step_ended()
    assert recorder.done
    assert len(recorder._recorded) == 4


@pytest.mark.parametrize(
    "settings", [{"steps": 0}, {"warmup": -1}, {"repeat": 0}, {"wait": -1}, {"device": "tpu"}, {"step": 3}]
)
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(BadUsage, match=next(iter(settings))):
        record("t.json", **settings)


def test_without_torch_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BadUsage, match=r"pip install 'gpu-trace-advisor\[torch\]'"), record(tmp_path / "t.json"):
        pass
    (tmp_path / "s.py").write_text("", encoding="utf-8")
    assert main(["--", str(tmp_path / "s.py")]) == 2
    assert capsys.readouterr().err.startswith("record: recording needs PyTorch: pip install")


def test_the_module_is_the_function_too(tmp_path: Path) -> None:
    import gpu_trace_advisor.record

    assert isinstance(gpu_trace_advisor.record, ModuleType)
    assert gpu_trace_advisor.record("t.json", steps=4).settings.steps == 4
    assert gpu_trace_advisor.record.Settings is Settings


@pytest.mark.parametrize(
    ("arguments", "message"), [([], "no script given"), (["--", "none.py"], "none.py: no such script")]
)
def test_no_script(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


# PyTorch itself


TRAIN = """
import sys
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    with torch.no_grad():
        model(torch.randn(2, 64))
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
print("all", sys.argv[1])
"""
INFER = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
with torch.inference_mode():
    for _ in range(30):
        model(torch.randn(32, 64))
"""


def recorded(folder: Path, source: str, *options: str, arguments: tuple[str, ...] = ()) -> Any:
    """Run the recorder on a script, in a process of its own."""
    (folder / "script.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "gpu_trace_advisor.record", *options, "--", str(folder / "script.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])


def steps_of(path: Path) -> int:
    found = advise(path).host
    assert found is not None
    return len(found.steps)


@pytest.mark.torch
def test_steps_of_a_training_script_are_found(tmp_path: Path) -> None:
    """Its evaluation passes are no steps."""
    done = recorded(tmp_path, TRAIN, "-o", str(tmp_path / "t.json.gz"), "--steps", "6", arguments=("30",))
    assert (done.returncode, done.stdout) == (0, "all 30\n")
    assert "t.json.gz: 6 steps, after 4 of warm-up that are left out" in done.stderr
    assert "no GPU: the host's side alone" in done.stderr
    assert steps_of(tmp_path / "t.json.gz") == 6


@pytest.mark.torch
def test_steps_of_an_inference_script_are_its_forward_passes(tmp_path: Path) -> None:
    done = recorded(tmp_path, INFER, "-o", str(tmp_path / "t.json.gz"), "--steps", "5")
    assert done.returncode == 0, done.stderr
    assert steps_of(tmp_path / "t.json.gz") == 5


@pytest.mark.torch
def test_a_script_can_be_ended_and_gives_a_file_a_cycle_that_names_no_host(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    options = ("-o", str(folder), "--steps", "3", "--repeat", "2", "--wait", "1", "--stop")
    done = recorded(tmp_path, TRAIN, *options, arguments=("100000",))
    assert (done.returncode, done.stdout) == (0, "")
    files = sorted(folder.iterdir())
    assert all(re.fullmatch(r"worker0\.\d{16,}\.pt\.trace\.json\.gz", path.name) for path in files)
    assert [steps_of(path) for path in files] == [3, 3]


@pytest.mark.torch
def test_too_few_steps_are_said_and_the_whole_can_be_recorded(tmp_path: Path) -> None:
    done = recorded(tmp_path, TRAIN, "-o", str(tmp_path / "t.json"), arguments=("2",))
    assert done.returncode == 2
    assert "2 steps found, 4 are warm-up; give a lower --warmup or more steps" in done.stderr
    done = recorded(tmp_path, "print('nothing')", "-o", str(tmp_path / "t.json"))
    assert "no steps found, 4 are warm-up; record it whole with --step none" in done.stderr
    done = recorded(tmp_path, TRAIN, "-o", str(tmp_path / "t.json"), "--step", "none", arguments=("2",))
    assert (done.returncode, steps_of(tmp_path / "t.json")) == (0, 0)


@pytest.mark.torch
def test_the_exit_code_is_the_scripts_own(tmp_path: Path) -> None:
    done = recorded(tmp_path, TRAIN + "sys.exit(7)", "-o", str(tmp_path / "t.json"), arguments=("30",))
    assert done.returncode == 7
    assert steps_of(tmp_path / "t.json") == 10


@pytest.mark.torch
def test_a_model_recorded_on_the_cpu_end_to_end(tmp_path: Path) -> None:
    import torch

    model = torch.nn.Linear(256, 256)
    with gpu_trace_advisor.record(tmp_path / "t.json.gz", steps=6, warmup=4) as steps:
        for _ in steps:
            model(torch.randn(64, 256)).sum().backward()
    assert steps.overhead is not None
    plain = advise(tmp_path / "t.json.gz").to_json()
    assert [step["name"] for step in plain["host"]["steps"]] == [f"ProfilerStep#{n}" for n in range(1, 7)]
    assert plain["traces"][0]["options"] == ["record_shapes"]
    limits = limits_of({"step": "10 s", "idle": "1%"}, "limits")
    assert [c.status for c in check(plain, Budget(tuple(limits)))] == ["ok", "unknown"]


@pytest.mark.torch
def test_traces_as_others_record_them(tmp_path: Path) -> None:
    """schedule(wait, warmup, active, repeat) with TensorBoard's handler: a file a cycle."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=5, repeat=2),
        on_trace_ready=tensorboard_trace_handler(str(tmp_path / "runs")),
        acc_events=True,
    ) as profiler:
        for _ in range(14):
            torch.randn(64, 64) @ torch.randn(64, 64)
            profiler.step()
    files = sorted((tmp_path / "runs").iterdir())
    assert [steps_of(path) for path in files] == [5, 5]


@pytest.fixture
def tests_of_a_model(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(
        """
        import pytest
        torch = pytest.importorskip("torch")

        @pytest.mark.efficiency(step="10 s", against="linear")
        def test_cpu(efficiency):
            model = torch.nn.Linear(64, 64)
            with efficiency.record(device="cpu", steps=6) as steps:
                for _ in steps:
                    model(torch.randn(8, 64))

        @pytest.mark.efficiency(idle="10%")
        def test_gpu(efficiency):
            with efficiency.record():
                torch.randn(8)

        def test_raises(efficiency):
            with efficiency.record(device="cpu"):
                raise KeyError("mine")
        """
    )
    return pytester


@pytest.mark.torch
def test_the_plugin_records_a_model(tests_of_a_model: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    import torch

    if torch.cuda.is_available():
        pytest.skip("this is about machines without a GPU")
    result = tests_of_a_model.runpytest_subprocess("-rs")
    result.assert_outcomes(passed=1, skipped=1, failed=1)
    result.stdout.fnmatch_lines(["E * KeyError: 'mine'", "*no GPU here that PyTorch can use*"])
    kept = json.loads((tests_of_a_model.path / "efficiency" / "linear.json").read_text(encoding="utf-8"))
    assert len(kept["hardware"]["cpu"][0]["lanes"][0]["periods_ns"]) >= 4
    result = tests_of_a_model.runpytest_subprocess("--efficiency-require-gpu", "-k", "gpu")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["efficiency: no GPU here * (--efficiency-require-gpu)"])
