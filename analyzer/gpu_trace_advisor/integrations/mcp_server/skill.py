"""The skill file that tells an agent how to use the command."""

from __future__ import annotations

from pathlib import Path

from gpu_trace_advisor.runtime.files import write_whole

SKILL = """---
name: gpu-trace-advisor
description: Find out why a PyTorch or CUDA program is slow on the GPU, change it, and verify the change with a second recording.
---

# Make a GPU program faster, with evidence

1. Record a few warm steps (five or more).

   ```sh
   python -m gpu_trace_advisor.record -o before.json.gz --steps 5 -- train.py
   ```

   With Nsight Systems: `nsys profile -t cuda,nvtx -o run python train.py`, then `nsys export -t sqlite run.nsys-rep`.

2. Read the answer: the verdict, what limits it, where the time went, three changes with what to do.

   ```sh
   advise before.json.gz
   ```

   Lines that begin with `Limit:` or `Trust:` come first: where the recording is cut or doubtful, record again as they say.
   Numbers are measured, modelled or assumed, as each says; what is unknown stays unknown.

3. Understand before changing: why it costs, when the advice does not hold, what several changes give together.

   ```sh
   advise --explain dataloader
   advise before.json.gz -v
   advise before.json.gz --what-if dataloader,mixed-precision
   ```

4. Make one change, the first that you can make. Record again in the same way to `after.json.gz`.

5. Verify. Exit code 0: not slower; 1: regressed; 2: not comparable, and the line says why.

   ```sh
   advise after.json.gz --against before.json.gz
   ```

   Keep the change only if the verdict is `improved`. If the gain is far from the predicted range, read `-v` again.
"""


def install_skill(folder: Path) -> Path:
    """Write SKILL.md into `gpu-trace-advisor/` in a folder; returns where.

    Raises:
        AdviseError: it cannot be written.
    """
    place = folder / "gpu-trace-advisor" / "SKILL.md"
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, SKILL)
    return place
