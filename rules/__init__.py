"""Rules, one file each, and as data what they rest on: the documents' claims (facts.toml) and the devices (hardware.toml).

How to write a rule
-------------------

A rule is one file, named like its id with underscores: here, or in a folder of your own. This one is whole:

    from collections.abc import Iterator

    from gpu_trace_advisor.analysis.device_window import DeviceWindow
    from gpu_trace_advisor.rulekit.evidence import of_operations
    from gpu_trace_advisor.rulekit.kernel_fixes import faster, running_time
    from gpu_trace_advisor.rulekit.rule import Claim, case, rule
    from gpu_trace_advisor.units import duration, share

    COPYING = \"\"\"
        step |....................
        host abS==================
        s7   .aaaaaaaaaaaabbbbbbb.
        a: copy_layout_kernel
        repeat: 4
        scale: 100us
    \"\"\"
    RARELY = \"\"\"
        step |....................
        host abS==================
        s7   .abbbbbbbbbbbbbbbbbb.
        a: copy_layout_kernel
        repeat: 4
        scale: 100us
    \"\"\"


    @rule(
        title="Layouts are converted again and again",         # what is wrong, as a headline
        cites=("https://example.org/layouts",),                # what it rests on: URLs, or keys of facts.toml
        needs=("launches",),                                   # names of gpu_trace_advisor.rulekit.rule.NEEDS
        fires=(case(COPYING, "More than half of the step is conversion."),),
        quiet=(case(RARELY, "One short conversion a step."),),
    )
    def layout_copies(view: DeviceWindow) -> Iterator[Claim]:
        \"\"\"Kernels that only change the layout of tensors take more than a tenth of the window.

        Why it costs: each reads and writes a whole tensor.

        What to do: keep one layout from input to output.

        How to verify: record again; the kernels are gone.

        When it must not fire: the kernels are rare.
        \"\"\"
        kernels = view.kernels("copy_layout")
        lost, wall = running_time(view, kernels), view.window.wall_ns
        if lost > 0.1 * wall:
            yield Claim(
                message=f"{len(kernels)} conversions take {duration(lost)}, {share(lost, wall)} of the wall.",
                ns=lost,
                how="Use one memory format from input to output.",
                fix=faster(view, "layout-copies", "no conversions", kernels, 0.5, 0.0),
                evidence=(of_operations(view, kernels),),
            )

Then, with it in `my_rules/`:

    advise --rules my_rules --test-rules             # runs its cases, and says what differs
    advise --rules my_rules --explain layout-copies  # its page, with the drawings
    advise trace.json --rules my_rules

Whatever goes wrong in a rule, while it is loaded, asked or priced, is one line beside the findings of the others. An id
that a built-in rule has is refused.

The parts
---------

*The page* is the docstring: what happens in the first sentence, then the four headings above.

*The view* (`gpu_trace_advisor.analysis.device_window.DeviceWindow`) is one device's window. It has `causes` (ns of the window
by cause), `attribution`, `timeline`, `trace`, `window`, `kept_steps`, `repetition`, `phase`, `hardware`, `inkernel` (what each
kernel had to do), `graph` and `trust`, `peers` (the other devices and ranks) and `request` (what the user told). Shares are
of `view.window.wall_ns`.

*Indices.* Three numbers stand for an operation. A row is a row of the trace's columns: `view.trace.start_ns[row]`,
`view.trace.name_of(row)`. The timeline numbers the operations of one device in order of time, and `view.timeline.row[i]` is the
row of operation i; `view.operations` are those inside the window. The graph numbers the operations of all devices of
the process; `gpu_trace_advisor.rulekit.kernel_fixes.in_graph(view, operations)` turns the timeline's numbers into its.

*Selectors* give the timeline's numbers: `view.kernels("gemm|cutlass")` of kernels whose name holds a regular expression,
`view.kernels(kernel_class="attention")` of one class.

*The claim* says what is so, with its numbers (`message`), how much of the wall it is about (`ns`), what to do (`how`), the
events behind it (`gpu_trace_advisor.rulekit.evidence`), the `formula` with its numbers, and a `fix`. Without a fix it is a
question or a statement. Claims about less than 1 % of the wall, or that would save less, are dropped. `doubts` are why it
may be wrong here; they make the confidence low. That fewer than three steps were recorded need not be said. A rule that
says several things gives each a `title`. Advice is in the words of what the trace shows: an engine's options where one
runs it (`view.uses`), PyTorch's, or CUDA's where there is none (`gpu_trace_advisor.trace.software.is_pytorch`).

*The fix* changes the graph, in a pessimistic and an optimistic form, and is replayed alone and on top of better ones: a rule
never states a saving itself. Ready ones are `gpu_trace_advisor.replay.fixes.FIXES`. Kernels that get faster, or become one,
are priced by `faster` and `merged` of `gpu_trace_advisor.rulekit.kernel_fixes`; other changes are made of
`gpu_trace_advisor.replay.changes`.

*Numbers*: one that a document claims is read from facts.toml (`value("key", "field")`), one of a device from hardware.toml
(`view.hardware`). A threshold of our own is a constant with a sentence on how it was chosen.

*Cases* are drawings (`python -m pydoc gpu_trace_advisor.rulekit.drawing`): `fires`, in which the rule speaks; `quiet`, near
misses in which it must not, more of them than of the first; `misses`, known failures, in which it ought to speak. They
are tests and illustrations. What all rules advise for the sample traces is kept in tests/golden.json; `python -m
tests.golden` writes it anew.

A rule imports from `gpu_trace_advisor`, never from another rule.
"""
