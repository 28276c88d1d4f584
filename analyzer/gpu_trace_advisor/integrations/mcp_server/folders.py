"""What a server may read and write: what lies in the folders that it was started with, links out of them left aside."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.ingest import TRACE_NAMES, find_traces

READ = (*TRACE_NAMES, ".parquet")
"""How the files end that are read of a folder."""

MADE_BY = b"Made by <code>advise</code>"
"""What stands at the end of every report."""


def _is_report(place: Path) -> bool:
    """A page that this package has written."""
    return place.is_file() and MADE_BY in place.read_bytes()


class Folders:
    """The folders of a server, resolved once."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(root.resolve(strict=True) for root in roots)

    def existing(self, path: str, *, read: bool = True) -> Path:
        """A file or folder that is there, without links in its path; a relative one is looked for in each folder.

        What is outside is said to be so whether it is there or not. read: what it holds is read too.

        Raises:
            BadUsage: there is none, or it lies outside, or it holds links to what does.
        """
        outside = False
        for place in [Path(path)] if Path(path).is_absolute() else [root / path for root in self.roots]:
            if not self._holds(Path(os.path.normpath(place))):
                outside = True
                continue
            try:
                found = place.resolve(strict=True)
            except (OSError, RuntimeError, ValueError):
                continue
            if self._holds(found):
                if not (found.is_file() or found.is_dir()):  # a pipe would keep its reader waiting
                    raise BadUsage(f"{path}: neither a file nor a folder")
                if read and (link := self._leads_out(found)):
                    raise BadUsage(f"{path}: {link.name} is a link that leads outside the folders of this server")
                return found
            outside = True
        raise BadUsage(
            f"{path}: {'outside' if outside else 'no such file in'} the folders of this server ({self._names()})"
        )

    def recordings(self, path: str) -> list[str]:
        """The recordings that a file or folder stands for.

        Raises:
            BadUsage: none, or one of them lies outside.
        """
        found = self.existing(path)
        return [str(self.existing(str(trace))) for trace in find_traces(found)]

    def writable(self, path: str) -> Path:
        """Where a report may be written: an HTML file in one of the folders that replaces nothing but another report.

        Raises:
            BadUsage: it may not.
        """
        name = Path(path)
        parent = self.existing(str(name.parent), read=False)
        place = parent / name.name
        if name.suffix != ".html":
            raise BadUsage(f"{path}: a report is written to a file that ends in .html")
        if place.is_symlink() or (place.exists() and not _is_report(place)):
            raise BadUsage(f"{path}: something else lies there; name another file")
        return place

    def _leads_out(self, found: Path) -> Path | None:
        """Of a folder's recordings, the first that is a link out of the folders."""
        inside = sorted(found.iterdir()) if found.is_dir() else []
        links = (one for one in inside if one.name.endswith(READ) and one.is_symlink())
        return next((link for link in links if not self._holds(link.resolve())), None)

    def _holds(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self.roots)

    def _names(self) -> str:
        return ", ".join(root.name or str(root) for root in self.roots)
