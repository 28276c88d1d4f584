"""Rules, one file each, and as data what they rest on: the documents' claims (facts.toml) and the devices (hardware.toml).

How to write a rule
-------------------

A rule is one file here, named like its id with underscores, or in a folder of your own (`advise --rules FOLDER`). It holds
one function of a `DeviceWindow`, decorated with `@rule`, that yields a `Claim` for what it finds and nothing where all is well:

    @rule(
        title="Blocking synchronisations drain the GPU",      # what is wrong, as a headline
        cites=("tvi-cause-barrier",),                         # keys of facts.toml; they name the rule in `used_by`
        needs=("host", "launches"),                           # gpu_trace_advisor.rulekit.rule.NEEDS; else it is skipped
        phases=("decode",), because="tvi-matrix-megakernel",  # only if it is about some phases: the claim that says so
        fires=(DRAWING, …), quiet=(DRAWING, …), misses=(DRAWING, …),
    )
    def host_sync(view: DeviceWindow) -> Iterator[Claim]:
        (its page)

*The page* is the docstring: what happens in the first sentence, then `Why it costs:`, `What to do:`, `How to verify:` and
`When it must not fire:`. `advise --explain RULE` prints it with the cases and the sources.

*The view* has `causes` (ns of the window by cause), `attribution`, `timeline` and `operations` (those of the window),
`trace`, `window`, `kept_steps`, `repetition`, `phase`, `hardware`, `inkernel` (what each kernel had to do), `graph` and
`trust`, `peers` (the other devices and ranks) and `request` (what the user told). Shares are of `view.window.wall_ns`.

*The claim* says what is so, with its numbers (`message`), how much of the wall it is about (`ns`), what to do (`how`),
the events behind it (`gpu_trace_advisor.rulekit.evidence`), the formula with its numbers, and a `fix`: a change of the
graph in a pessimistic and an optimistic form (`gpu_trace_advisor.replay.fixes`, `gpu_trace_advisor.replay.changes`).
Ranking replays it, alone and on top of better ones; a rule never states a saving itself. Without a fix a claim is a
question or a statement. Claims about less than 1 % of the wall, or that would save less, are dropped by the engine.
`doubts` are why it may be wrong here; they make the confidence low. That fewer than three steps were recorded need not
be said: the engine does. A rule that says several things gives each a `title`. Advice is in the words of what the trace
shows: an engine's options where one runs it (`view.uses`), PyTorch's, or CUDA's where there is none
(`gpu_trace_advisor.trace.software.is_pytorch`).

*Numbers*: one that a document claims is read from facts.toml (`value("key", "field")`), one of a device from
hardware.toml (`view.hardware`). A threshold of our own is a constant with a sentence on how it was chosen.

*Cases* are drawings (`gpu_trace_advisor.rulekit.drawing`): `fires`, in which the rule speaks; `quiet`, near misses in
which it must not, more of them than of the first; `misses`, known failures, in which it ought to speak. They are tests
and illustrations. What all rules advise for the sample traces is kept in tests/golden.json; `python -m tests.golden`
writes it anew.

A rule imports from `gpu_trace_advisor`, never from another rule. One that raises is reported beside the findings of the others.
"""
