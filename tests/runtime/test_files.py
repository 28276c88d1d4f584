"""Files are written whole or not at all, and not through what somebody else has laid there."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_trace_advisor.errors import AdviseError, BadUsage
from gpu_trace_advisor.runtime.files import locked, read_small, write_whole

posix = pytest.mark.skipif(os.name != "posix", reason="permissions and signals of POSIX")


def test_a_file_is_replaced_with_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_whole(path, "one")
    path.chmod(0o600)
    write_whole(path, "two")
    assert path.read_text("utf-8") == "two" and [p.name for p in tmp_path.iterdir()] == ["a"]
    assert os.name != "posix" or path.stat().st_mode & 0o777 == 0o600


@posix
@pytest.mark.parametrize("name", ["a" * 255, "a" * 256, "b\0c", "loop"])
def test_names_as_long_as_the_system_takes(name: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    if len(name) == 255:
        write_whole(tmp_path / name, "x")
        assert (tmp_path / name).read_text("utf-8") == "x"
    else:
        with pytest.raises(AdviseError, match="cannot be written"):
            write_whole(tmp_path / name, "x")
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".part")]


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="lays a link of another user")
def test_a_link_of_somebody_else_in_a_shared_folder_is_not_followed(tmp_path: Path) -> None:
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    shared.mkdir()
    shared.chmod(0o1777)
    mine.write_text("mine", encoding="utf-8")
    (shared / "out").symlink_to(mine)
    write_whole(shared / "out", "through")
    os.chown(shared / "out", 65534, 65534, follow_symlinks=False)
    with pytest.raises(AdviseError, match="somebody else"):
        write_whole(shared / "out", "again")
    assert mine.read_text("utf-8") == "through"


@posix
def test_a_writer_that_is_killed_leaves_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("0" * 5_000_000, encoding="utf-8")
    write = (
        "import sys; from pathlib import Path; from gpu_trace_advisor.runtime.files import write_whole\n"
        "print('on', flush=True)\n"
        "while True:\n    for c in '123': write_whole(Path(sys.argv[1]), c * 5_000_000)"
    )
    for i in range(8):
        writer = subprocess.Popen([sys.executable, "-c", write, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout
        writer.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(0.003 * i)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        text = path.read_text("utf-8")
        assert len(text) == 5_000_000 and len(set(text)) == 1


@posix
def test_one_is_inside_at_a_time(tmp_path: Path) -> None:
    count = (
        "import sys; from pathlib import Path; from gpu_trace_advisor.runtime.files import locked, write_whole\n"
        "path = Path(sys.argv[1])\n"
        "for _ in range(50):\n"
        "    with locked(path): write_whole(path, str(int(path.read_text()) + 1))"
    )
    path = tmp_path / "count"
    path.write_text("0", encoding="utf-8")
    writers = [subprocess.Popen([sys.executable, "-c", count, str(path)]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert path.read_text("utf-8") == "150"
    with locked(tmp_path / "nowhere" / "file"):  # nothing to lock: whoever writes there says so
        pass


@pytest.mark.parametrize(
    ("data", "says"), [(b"x" * 101, "longer than"), (b"\xff", "no UTF-8"), (None, "No such file"), (b"", "")]
)
def test_small_files_are_read_as_far_as_they_are_small(data: bytes | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    if data is not None:
        path.write_bytes(data)
    if says:
        with pytest.raises(BadUsage, match=says):
            read_small(path, 100)
    else:
        assert read_small(path, 100) == ""


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no endless device")
def test_an_endless_file_is_refused() -> None:
    with pytest.raises(BadUsage, match="longer than 1 MiB"):
        read_small(Path("/dev/zero"))
