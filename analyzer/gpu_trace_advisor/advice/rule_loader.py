"""Finds the rules: those of the package, and those in a folder of the user's own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from gpu_trace_advisor.analysis.request import PHASES
from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.rulekit.rule import NEEDS, Rule
from gpu_trace_advisor.runtime.guarded import Failed, attempt


def find_rules(folder: Path | None = None) -> tuple[list[Rule], list[str]]:
    """The rules of the package and of a user's own folder, by id; and what could not be loaded.

    Raises:
        BadUsage: there is no such folder.
    """
    built_in = _built_in()
    rules = dict(built_in)
    errors: list[str] = []
    if folder is not None:
        for path in _files(folder):
            try:
                for rule in attempt(partial(_own_rules, path)):
                    if fault := attempt(partial(_fault, rule, rules, built_in)):
                        errors.append(f"{path}: rule {rule.id}: {fault}")
                    else:
                        rules[rule.id] = replace(rule, own=True)
            except Failed as error:
                errors.append(f"{path}: {error}")
    return sorted(rules.values(), key=lambda rule: rule.id), errors


@cache
def _built_in() -> Mapping[str, Rule]:
    """The rules of the package, by id."""
    package = import_module("gpu_trace_advisor.rules")
    modules = [import_module(f"{package.__name__}.{module.name}") for module in iter_modules(package.__path__)]
    return {rule.id: rule for module in modules for rule in _rules_of(module)}


def _own_rules(path: Path) -> list[Rule]:
    return _rules_of(_load(path))


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".py")
    except (FileNotFoundError, NotADirectoryError):
        raise BadUsage(f"--rules {folder}: no such folder") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in its name
        raise BadUsage(f"--rules {folder}: {getattr(error, 'strerror', None) or error}") from None


def _rules_of(module: ModuleType) -> list[Rule]:
    found = [value for value in vars(module).values() if isinstance(value, Rule)]
    return [replace(rule, path=str(module.__file__ or "")) for rule in found]


def _fault(rule: Rule, others: Iterable[str], built_in: Iterable[str]) -> str:
    """What is wrong with somebody's own rule; empty where nothing is."""
    if rule.id in built_in:
        return "a built-in rule has this id; give the function another name"
    if rule.id in others:
        return "another file has a rule of this id"
    if unknown := sorted(set(rule.needs) - NEEDS.keys()):
        return f"needs {', '.join(unknown)}: expected {', '.join(NEEDS)}"
    if unknown := sorted(set(rule.phases) - set(PHASES)):
        return f"phases {', '.join(unknown)}: expected {', '.join(PHASES)}"
    for key in (*rule.cites, *filter(None, (rule.because,))):
        try:
            rule.source(key)
        except LookupError as error:
            return f"cites {key!r}: {error}; cite a key of facts.toml or a URL"
    return ""


def _load(path: Path) -> ModuleType:
    """A module that no import system knows, so that it can replace none."""
    name = f"user_rules_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def named_rule(rules: Iterable[Rule], name: str) -> Rule:
    """The rule of this id.

    Raises:
        BadUsage: there is none.
    """
    known = {rule.id: rule for rule in rules}
    if name not in known:
        raise BadUsage(f"no rule {name}; there are {', '.join(known)}")
    return known[name]
