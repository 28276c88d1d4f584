"""What serving engines write around a step: how many tokens of how many requests, and how much cache they read.

execute_context_2(888)_generation_30(30)                      vLLM: requests (tokens) of prompts and of answers
execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)
                                                              with sums over requests of queries q, keys k, q q and q k
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

STEP = re.compile(
    r"execute_(?:(?P<all>\d{1,9})_)?context_(?P<c>\d{1,9})\((?P<ct>[^)]*)\)_generation_(?P<g>\d{1,9})\((?P<gt>[^)]*)\)"
)
SUMS = re.compile(r"sq(\d{1,12})sk(\d{1,12})sqsq(\d{1,15})sqsk(\d{1,15})")


class EngineStep(NamedTuple):
    """The attention of one step, summed over its requests."""

    requests: int
    queries: int
    keys: int
    """At least so many: one whose cache is not told has those of its own tokens."""
    pairs: float
    """Of query and key, each query with the keys up to its own: at least so many."""


@lru_cache(maxsize=16_384)
def read_step(name: str) -> EngineStep | None:
    """The step that an annotation of this name is around; None for any other name, or one of no tokens."""
    found = STEP.match(name)
    if found is None:
        return None
    prompts, answers = (_part(int(found[n]), found[text]) for n, text in (("c", "ct"), ("g", "gt")))
    if prompts is None or answers is None:
        return None
    step = EngineStep(
        prompts.requests + answers.requests, prompts.queries + answers.queries, prompts.keys + answers.keys,
        prompts.pairs + answers.pairs,
    )  # fmt: skip
    return step if step.queries and step.requests else None


def _part(requests: int, text: str) -> EngineStep | None:
    """Of the prompts or of the answers of a step."""
    if sums := SUMS.fullmatch(text):
        queries, keys, squares, products = map(int, sums.groups())
        return EngineStep(requests, queries, keys, products - (squares - queries) / 2)
    numbers = re.findall(r"\d{1,15}", text)
    queries = int(numbers[0]) if numbers else 0
    if not requests or not queries:
        return EngineStep(0, 0, 0, 0.0) if not requests and not queries else None
    return EngineStep(requests, queries, queries, queries * (queries / requests + 1) / 2)  # equally long: the least
