"""What `import gpu_trace_advisor` offers: each public name listed, sorted, documented and loaded only when it is asked for."""

import ast
import importlib
import inspect
import subprocess
import sys
import typing
from pathlib import Path

import gpu_trace_advisor
import numpy as np
import pytest
from gpu_trace_advisor import errors

from tests.build import call, kernel, written

NAMES: list[str] = sorted(getattr(gpu_trace_advisor, "__all__", []))


def order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each by name."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_the_names_are_sorted_and_distinct() -> None:
    assert gpu_trace_advisor.__all__ == sorted(set(NAMES), key=order)
    assert NAMES


def test_nothing_else_is_public() -> None:
    found = {
        name
        for name, value in vars(gpu_trace_advisor).items()
        if not name.startswith("_") and getattr(value, "__module__", "").partition(".")[0] == "gpu_trace_advisor"
    }
    assert found <= set(NAMES)


def test_dir_lists_the_names() -> None:
    assert set(NAMES) <= set(dir(gpu_trace_advisor))


def test_an_unknown_name_is_an_attribute_error() -> None:
    name = "no_such_name"
    with pytest.raises(AttributeError, match=name):
        getattr(gpu_trace_advisor, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_documented(name: str) -> None:
    value = getattr(gpu_trace_advisor, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__name__ == name
        assert value.__module__.startswith("gpu_trace_advisor.")
        assert value.__doc__, f"gpu_trace_advisor.{name} has no docstring"
        assert not value.__doc__.startswith(f"{name}("), (
            f"gpu_trace_advisor.{name} has only the docstring that dataclass makes"
        )


def test_every_error_is_public() -> None:
    raised = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert raised <= set(NAMES)


def test_what_public_functions_take_and_give_is_public() -> None:
    """A type of this package that stands in the signature of a public function can be imported from the same place."""
    functions = [value for name in NAMES if inspect.isfunction(value := getattr(gpu_trace_advisor, name))]
    seen = {
        part.__name__
        for function in functions
        for hint in typing.get_type_hints(function).values()
        for part in parts(hint)
        if isinstance(part, type) and part.__module__.partition(".")[0] == "gpu_trace_advisor"
    }
    assert functions
    assert seen <= set(NAMES)


def parts(hint: object) -> list[object]:
    """A type and all types inside it."""
    return [hint, *(part for argument in typing.get_args(hint) for part in parts(argument))]


def test_the_readme_imports_only_public_names(root: Path) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    examples = readme.split("```python\n")[1:]
    used = {
        node.attr
        for example in examples
        for node in ast.walk(ast.parse(example.split("```")[0]))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "gpu_trace_advisor"
    }
    assert used
    assert used <= set(NAMES)


def test_importing_the_package_loads_no_module_of_it() -> None:
    loaded = (
        "import sys, gpu_trace_advisor; "
        "print(*[name for name in sys.modules if name.startswith(('gpu_trace_advisor.', 'numpy'))])"
    )
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_star_import_gives_every_name() -> None:
    names = "names = {}; exec('from gpu_trace_advisor import *', names); print(*sorted(set(names) - {'__builtins__'}))"
    done = subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, check=True)
    assert done.stdout.split() == NAMES


def test_a_public_function_stays_one_when_modules_are_imported() -> None:
    """A module of its name would take its place in the package as soon as anything imports it."""
    package = Path(gpu_trace_advisor.__file__).parent
    modules = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    assert modules & set(NAMES) == {"record"}, "record is also a command, and a module that can be called"
    importlib.import_module("gpu_trace_advisor.record")
    assert callable(gpu_trace_advisor.record)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: gpu_trace_advisor.Request(phase="serving"), "--phase serving: expected training, prefill, decode"),
        (lambda: gpu_trace_advisor.Request(objective="speed"), "--objective speed: expected latency, throughput"),
        (lambda: gpu_trace_advisor.Request(steps=3), "steps=3: expected text"),  # type: ignore[arg-type]
        (lambda: gpu_trace_advisor.advise(), "no trace given"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(ask: typing.Callable[[], object], says: str) -> None:
    with pytest.raises(errors.BadUsage, match=says):
        ask()


def test_advice_takes_patterns_and_tells_what_it_could_not_read(tmp_path: Path) -> None:
    for number in (1, 2):
        written(tmp_path / f"run{number}.json", call(0, 5, 1), kernel(10, 20, 1))
    (tmp_path / "run3.json").write_text("{", encoding="utf-8")
    advice = gpu_trace_advisor.advise(tmp_path / "run*.json")
    assert [device.file for device in advice.devices] == ["run1.json", "run2.json"]
    assert len(advice.errors) == 1
    assert "run3.json" in advice.errors[0]
    with pytest.raises(errors.UnreadableTrace, match=r"run3\.json"):
        gpu_trace_advisor.advise(tmp_path / "run3.json")


def test_the_names_of_events_are_those_that_occur(tmp_path: Path) -> None:
    frame = gpu_trace_advisor.read(
        written(tmp_path / "t.json", call(0, 5, 1, "cudaLaunchKernel"), kernel(10, 20, 1, "gemm"))
    ).to_pandas()
    assert sorted(frame["name"].cat.categories) == ["cudaLaunchKernel", "gemm"]
    assert frame["stream"].dtype == frame["thread"].dtype == np.int64
