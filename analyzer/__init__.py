"""Where the wall time of a GPU trace went."""

from pathlib import Path as _Path

# Installed, rules/ and templates/ lie inside this package; in a checkout they lie beside it.
if not (_Path(__file__).parent / "rules").is_dir():
    __path__.append(str(_Path(__file__).parents[1]))
