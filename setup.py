"""What pyproject.toml cannot say: the README as a package index shows it, where links into a checkout lead nowhere."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<place>(?!\w+:|#)[^)\s]+)\)")


def for_an_index(text: str, source: str | None) -> str:
    """The text with links into the project led to its pages at `source`; without one, files are named.

    Pictures are left out: a page of a file is no picture.

    source: where the project's files can be seen, such as the address of a branch in a forge's file view.
    """

    def replaced(match: re.Match[str]) -> str:
        if match["picture"]:
            return ""
        if source:
            return f"[{match['text']}]({source.rstrip('/')}/{match['place']})"
        return match["text"] if match["text"] == match["place"] else f"{match['text']} (`{match['place']}`)"

    found = LINK.sub(replaced, text)
    return found if source or found == text else f"{found}\nFiles named here lie in the source archive.\n"


def long_description() -> str:
    """Of this project, whose pages lie where `Source` of its URLs says, once they lie anywhere."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return for_an_index((HERE / "README.md").read_text(encoding="utf-8"), project.get("urls", {}).get("Source"))


if __name__ == "__main__":
    setup(long_description=long_description(), long_description_content_type="text/markdown")
