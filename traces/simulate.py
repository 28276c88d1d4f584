"""A discrete-event simulator of GPU programs.

Host threads run the lines of a recipe one after another; what they submit starts on its stream as soon as the launch
has reached the device, the stream's predecessor has ended and the events waited for have happened. Whole nanoseconds
throughout; the same recipe gives the same program, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Mapping

from traces import recipe as language
from traces.devices import DEVICES
from traces.machine import Changes, Waiting, World
from traces.program import Program
from traces.recipe import Recipe
from traces.verbs import Verbs


def simulate(
    recipe: Recipe | str,
    *,
    scale: Mapping[str, float] | None = None,
    loader: bool = True,
    syncs: bool = True,
    graphs: bool = False,
    pinned: bool = False,
    steps: int | None = None,
    jitter: float = 0.0,
    seed: int = 0,
    launch: Mapping[str, int] | None = None,
    depth: int | None = None,
) -> Program:
    """Run a recipe (or the sample recipe of this name), with changes.

    `loader=False` leaves data loaders out, `syncs=False` waiting calls, `graphs=True` replays every `capture` block as
    one graph, `pinned=True` makes pageable copies pinned and asynchronous; `scale` multiplies times by their kind.
    """
    if isinstance(recipe, str):
        recipe = language.load(recipe)
    changes = Changes(scale or {}, loader, syncs, graphs, pinned, steps, jitter, seed, launch or {}, depth)
    ranks = int(recipe.settings.get("ranks", {}).get("count", "1"))
    world = World(ranks)
    machines = [Verbs(recipe, changes, rank, world) for rank in range(ranks)]
    _run([machine.start(name) for machine in machines for name in recipe.threads])
    for machine in machines:
        machine.finish()
    return Program(
        recipe.name, DEVICES[recipe.device], recipe.settings.get("trace", {}), tuple(m.rank for m in machines)
    )


def _run(threads: list[Waiting]) -> None:
    """Advance the threads in order of their own time until all have ended."""
    due = dict.fromkeys(range(len(threads)), 0)
    while due:
        for i in sorted(due, key=lambda i: (due[i], i)):
            try:
                time = next(threads[i])
            except StopIteration:
                del due[i]
                break
            if time is not None:  # else it waits for something that another thread has yet to submit
                due[i] = time
                break
        else:
            raise RuntimeError("every thread waits for another: a collective that some rank never reaches?")
