"""What gets installed: the package whole, nothing beside it, and no more weight than promised."""

import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LARGEST_INSTALL = 240 * 10**6
"""Bytes on disk of everything that `pip install gpu-trace-advisor` brings."""

NEVER_REQUIRED = {"torch", "holistictraceanalysis", "playwright", "selenium"}

LINKED = ("rules", "templates")
"""Folders at the top that the package holds by a link."""

SHIPPED = {".py", ".pyi", ".typed", ".json", ".toml", ".yaml", ".html", ".css", ".js"}


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def packages(project: dict[str, Any], root: Path) -> dict[str, Path]:
    """Each installed package and the folder that it is made of."""
    (source,) = project["tool"]["setuptools"]["packages"]["find"]["where"]
    folders = {path.parent for path in (root / source).glob("**/__init__.py")}
    folders |= {root / source / "gpu_trace_advisor" / name for name in LINKED}
    return {".".join(folder.relative_to(root / source).parts): folder for folder in folders}


COMPILED = {"gpu_trace_advisor/ingest/chrome/_scan", "gpu_trace_advisor/runtime/loops"}


@pytest.fixture(scope="module")
def built_wheel(project_files: list[Path], root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source archive, built from a copy of the project."""
    return build_wheel(tmp_path_factory.mktemp("build"), project_files, root)


def build_wheel(work: Path, project_files: list[Path], root: Path, **environment: str) -> Path:
    """The wheel, built in a folder with these variables of the environment."""
    for path in [*project_files, *(root / "analyzer" / "gpu_trace_advisor" / name for name in LINKED)]:
        copy = work / "project" / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy, follow_symlinks=False)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(work / "dist"), str(work / "project")]
    done = subprocess.run(build, capture_output=True, text=True, check=False, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (work / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(built_wheel: Path) -> list[str]:
    """The files in the wheel."""
    return files_in(built_wheel)


def files_in(wheel: Path) -> list[str]:
    """The names of what a wheel holds."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def environment(built_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with the wheel, and what it needs borrowed from this one."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("site-packages")))
    programs = home / "bin"
    install = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--no-index", str(built_wheel)], check=True)
    return programs


THEIRS = {
    "analyzer.py": "OURS = 1\n", "report.py": "OURS = 1\n", "rules/__init__.py": "OURS = 1\n",
    "traces/__init__.py": "OURS = 1\n", "templates/__init__.py": "OURS = 1\n", "analyzer/__init__.py": "OURS = 1\n",
    "tests/test_theirs.py": "import {name}\n\ndef test_it_is_theirs():\n    assert {name}.OURS == 1\n",
}  # fmt: skip
"""Names that a project may well use itself; a package `analyzer` would hide a module of that name, so each has a turn."""


@pytest.mark.slow
@pytest.mark.parametrize("theirs", [name for name in THEIRS if not name.startswith("tests")])
def test_a_project_with_the_same_names_is_not_disturbed(
    theirs: str, environment: Path, tmp_path: Path, sample: Callable[[str], Path]
) -> None:
    name = theirs.removesuffix(".py").removesuffix("/__init__")
    for file in (theirs, "tests/test_theirs.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(THEIRS[file].format(name=name))
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))}
    here = {**plain, "PYTHONPATH": "."}

    def ends_well(*command: str, env: dict[str, str], config: str = "") -> None:
        (tmp_path / "pytest.ini").write_text(f"[pytest]\n{config}\n")
        run = [str(environment / command[0]), *command[1:]]
        done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])

    tests = ("-q", "-p", "no:cacheprovider", "-p", "no:randomly")
    ends_well("python", "-m", "pytest", *tests, env=plain)
    ends_well("python", "-m", "pytest", *tests, env=here)
    ends_well(
        "python",
        "-c",
        "import sys, pytest; sys.path.pop(0); sys.exit(pytest.main())",
        env=plain,
        config="pythonpath = .",
    )
    ends_well("advise", str(sample("training-dataloader")), "-o", "advice.txt", env=here)
    ends_well("python", "-m", "gpu_trace_advisor", str(sample("training-dataloader")), "-o", "advice.txt", env=here)
    assert (tmp_path / "advice.txt").stat().st_size


def test_every_folder_with_code_is_a_package(packages: dict[str, Path], root: Path) -> None:
    code = {path.parent for name in ("analyzer", *LINKED) for path in (root / name).rglob("*.py")}
    assert code == {folder.resolve() for folder in packages.values()}


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_every_package(
    wheel: list[str], packages: dict[str, Path], project_files: list[Path]
) -> None:
    expected = {
        f"{package.replace('.', '/')}/{path.name}"
        for package, folder in packages.items()
        for path in project_files
        if path.parent == folder.resolve() and path.suffix in SHIPPED
    }
    held = {name for name in wheel if ".dist-info/" not in name}
    machine_code = {name for name in held if name.endswith((".so", ".pyd"))}
    assert held - machine_code == expected
    assert {name.partition(".")[0] for name in machine_code} == (COMPILED if shutil.which("cc") else set())
    assert "gpu_trace_advisor/py.typed" in held


@pytest.mark.slow
def test_without_a_compiler_the_wheel_holds_python_alone(
    wheel: list[str], tmp_path: Path, project_files: list[Path], root: Path
) -> None:
    plain = files_in(build_wheel(tmp_path, project_files, root, CC="/bin/false"))
    assert set(plain) == {name for name in wheel if not name.endswith((".so", ".pyd"))}


@pytest.mark.slow
def test_what_an_index_shows_has_no_link_that_leads_nowhere(built_wheel: Path, root: Path) -> None:
    """Files of a checkout are named instead, and lie in the source archive."""
    with zipfile.ZipFile(built_wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(name).decode().partition("\n\n")[2]
    assert text.startswith("# gpu-trace-advisor")
    assert re.findall(r"\]\((?!https://)[^)]*\)", text) == []
    named = set(re.findall(r"\(`([\w/]+\.md)`\)", text))
    assert "docs/options.md" in named
    (source,) = built_wheel.parent.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        held = {member.partition("/")[2] for member in archive.getnames()}
    assert named <= held


def test_links_lead_to_where_the_files_can_be_seen_once_that_is_known(root: Path) -> None:
    for_an_index = runpy.run_path(str(root / "setup.py"))["for_an_index"]
    text = "![a](docs/a.png) [b](docs/b.md) [LICENSE](LICENSE) [c](https://c.example/x.md) [d](#d)"
    seen = "https://forge.example/p/blob/main"
    assert for_an_index(text, seen + "/") == (
        f" [b]({seen}/docs/b.md) [LICENSE]({seen}/LICENSE) [c](https://c.example/x.md) [d](#d)"
    )
    assert for_an_index(text, None).splitlines()[0] == " b (`docs/b.md`) LICENSE [c](https://c.example/x.md) [d](#d)"


@pytest.mark.slow
def test_only_the_package_reaches_site_packages(wheel: list[str], project: dict[str, Any]) -> None:
    metadata = f"gpu_trace_advisor-{project['project']['version']}.dist-info"
    assert {name.split("/")[0] for name in wheel} == {"gpu_trace_advisor", metadata}
    assert f"{metadata}/licenses/LICENSE" in wheel
    assert f"{metadata}/entry_points.txt" in wheel


def test_installed_size_of_the_requirements(project: dict[str, Any]) -> None:
    required = dict(closure(project["project"]["dependencies"]))
    assert required.keys() >= {"numpy", "isal", "pandas"}
    assert not required.keys() & NEVER_REQUIRED
    sizes = {name: size_on_disk(found) for name, found in required.items()}
    assert sum(sizes.values()) <= LARGEST_INSTALL, sizes


def closure(requirements: list[str]) -> Iterator[tuple[str, importlib.metadata.Distribution]]:
    """Every distribution that these requirements bring into this environment, directly or not."""
    seen = set()
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        found = importlib.metadata.distribution(name)
        for asked in {"", *requirement.extras}:
            if (name, asked) not in seen:
                seen.add((name, asked))
                waiting += [(Requirement(text), asked) for text in found.requires or ()]
        yield name, found


def size_on_disk(found: importlib.metadata.Distribution) -> int:
    """Bytes of the files that the distribution installed, compiled modules included."""
    paths = (Path(str(found.locate_file(file))) for file in found.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file())
