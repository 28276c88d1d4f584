"""The engine with rules made by hand: what is asked, kept, skipped, priced, ranked."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_trace_advisor.advice.ranking import judge
from gpu_trace_advisor.advice.rule_cases import view_of
from gpu_trace_advisor.advice.rule_loader import find_rules, named_rule
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.replay.fixes import FIXES, Fix, unchanged
from gpu_trace_advisor.replay.sweep import Trust
from gpu_trace_advisor.rulekit.kernel_fixes import faster
from gpu_trace_advisor.rulekit.rule import Claim, Rule, rule

from tests.build import Event, advice, call, kernel, op, step, sync

SLOW_LOADER = """
 step |...................
 host DDDDDOO.aOO.bOO.cOO.d
 s7   .........a....b...c..d
 repeat: 4
"""


def claim(view: DeviceWindow, cause: str, *, fix: Fix | None = None, share: float = 0.5) -> Claim:
    return Claim(f"{cause} 1", "do", ns=round(share * view.window.wall_ns), fix=fix)


def made(name: str, check: object, **more: object) -> Rule:
    """A rule of this id."""

    def function(view: DeviceWindow) -> Iterable[Claim]:
        """It is so.

        How to verify: look again.
        """
        return check(view)  # type: ignore[operator,no-any-return]

    function.__name__ = name
    return rule(title=name, cites=("tvi-cause-launch",), **more)(function)  # type: ignore[arg-type]


def test_a_rule_that_raises_is_kept_beside_the_others() -> None:
    def broken(view: DeviceWindow) -> Iterator[Claim]:
        yield claim(view, "first")
        raise ZeroDivisionError("no steps")

    good = made("good", lambda view: [claim(view, "second")])
    verdicts = judge(view_of(SLOW_LOADER), [made("broken", broken), good])
    assert [finding.rule for finding in verdicts.findings] == ["good"]
    assert verdicts.errors == ("rule broken failed on drawing, device 0: ZeroDivisionError: no steps",)


@pytest.mark.parametrize(
    ("need", "why"),
    [
        ("shapes", "no shapes"), ("hardware", "no peaks are known"), ("ranks", "several ranks"), ("memory", "no memory events"),
    ],
)  # fmt: skip
def test_a_rule_without_what_it_needs_is_skipped_with_the_reason(need: str, why: str) -> None:
    verdicts = judge(view_of(SLOW_LOADER), [made("needy", lambda view: [claim(view, "x")], needs=(need,))])
    assert verdicts.findings == ()
    assert why in verdicts.skipped[0].why


def test_a_window_without_length_is_asked_nothing() -> None:
    """Recordings in whole microseconds hold kernels of no length."""
    found = advice(call(10, 15, 1), {**kernel(20, 30, 1), "dur": 0})
    assert (found.devices[0].wall_ns, found.devices[0].kernels) == (0, 1)
    assert found.errors == () and found.findings == ()
    assert {skipped.why.split(":")[0] for skipped in found.skipped} == {"the window has no length"}


def test_a_rule_of_another_phase_says_which_document_says_so() -> None:
    megakernel = made(
        "mega", lambda view: [claim(view, "x")], phases=("decode",), because="tvi-megakernel-not-training"
    )
    skipped = judge(view_of(SLOW_LOADER + " phase: training"), [megakernel]).skipped
    assert "does not apply to training" in skipped[0].why
    assert "training-vs-inference, section Q3" in skipped[0].why
    assert judge(view_of(SLOW_LOADER + " phase: decode"), [megakernel]).findings
    assert "phase is not known" in judge(view_of(SLOW_LOADER), [megakernel]).skipped[0].why


def test_findings_are_ranked_by_what_they_add() -> None:
    """Two rules about the same time: the second is dropped, its time is saved already."""
    view = view_of(SLOW_LOADER)
    loader = made("loader", lambda s: [claim(s, "loader", fix=FIXES["dataloader"])])
    again = made("again", lambda s: [claim(s, "again", fix=replace(FIXES["dataloader"], low_share=0.1))])
    graphs = made("graphs", lambda s: [claim(s, "graphs", fix=FIXES["cuda-graphs"])])
    verdicts = judge(view, [loader, again, graphs])
    assert {finding.rule for finding in verdicts.findings} == {"loader", "graphs"}
    assert "saved already" in next(s.why for s in verdicts.skipped if s.rule == "again")
    savings = [finding.saving_ns for finding in verdicts.findings]
    assert all(low <= high for low, high in filter(None, savings))
    assert verdicts.joint is not None
    low, high = verdicts.joint.saving_ns
    assert 0 < low <= high <= view.window.wall_ns
    assert high == sum(s[1] for s in savings if s)
    assert high == pytest.approx(view.saving(FIXES["dataloader"], FIXES["cuda-graphs"]).high_ns, abs=1)


@pytest.mark.parametrize(
    ("share", "assumes", "least"),
    [(1.0, (), 1.0), (0.5, (), 0.5), (1.0, ("it can",), 0.9), (0.5, ("it can",), 0.5)],
)
def test_what_is_promised_at_least_is_a_part_of_the_time_that_is_named(
    share: float, assumes: tuple[str, ...], least: float
) -> None:
    """The loader's time is named to a third, and the replay would save all of it: both forms come to what is named. Of that
    the pessimistic form promises its share, and never all where it rests on assumptions."""
    view = view_of(SLOW_LOADER)
    fix = replace(FIXES["dataloader"], low_share=share, assumes=assumes)
    named = view.causes["dataloader"] // 3
    loader = made("loader", lambda s: [Claim("loader", "do", named={"dataloader": named}, fix=fix)])
    (finding,) = judge(view, [loader]).findings
    assert finding.saving_ns == finding.alone_ns == (int(named * least), named)


def test_each_stretch_of_time_has_one_root_cause() -> None:
    """Ranked by savings alone, a fix that lets the loader hide would come before the loader."""
    view = view_of(SLOW_LOADER)
    small = made("small", lambda s: [claim(s, "small", fix=FIXES["cuda-graphs"], share=0.05)])
    loader = made("loader", lambda s: [claim(s, "loader", fix=FIXES["dataloader"], share=0.3)])
    assert [finding.rule for finding in judge(view, [small, loader]).findings] == ["loader", "small"]


def test_what_saves_only_behind_another_fix_comes_behind_it() -> None:
    """Kernels run 44 of 84 µs and the host is slower than they are: twice as fast, they save nothing; once it is not, 22.

    Half of the host's 25 is promised at least, and so is half of what takes it for granted.
    """
    view = view_of("""
     step |...................
     host OOOOaOOOObOOOOcOOOOd
     s7   ....aaa..bbb..ccc..dd
     repeat: 4
    """)
    half = faster(view, "kernels", "kernels twice as fast", view.operations, 0.5, 0.5)
    kernels = made("kernels", lambda s: [claim(s, "kernels", fix=half)])
    host = made("host", lambda s: [claim(s, "host", fix=FIXES["host-work"])])
    assert "below 1 %" in judge(view, [kernels]).skipped[0].why
    verdicts = judge(view, [kernels, host])
    assert [(f.rule, f.saving_ns, f.alone_ns) for f in verdicts.findings] == [
        ("host", (12_500, 25_000), (12_500, 25_000)),
        ("kernels", (11_000, 22_000), (0, 0)),
    ]
    assert verdicts.joint is not None and verdicts.joint.saving_ns == (23_500, 47_000)
    together = view.saving(FIXES["host-work"], half)
    assert (together.low_ns, together.high_ns) == (23_500, 47_000)


def test_what_saves_nothing_is_no_finding() -> None:
    idle = made("idle", lambda s: [claim(s, "x", fix=Fix("none", "nothing", unchanged, unchanged))])
    verdicts = judge(view_of(SLOW_LOADER), [idle])
    assert (verdicts.findings, verdicts.joint) == ((), None)
    assert "below 1 %" in verdicts.skipped[0].why


def test_what_is_below_one_percent_is_no_finding() -> None:
    verdicts = judge(view_of(SLOW_LOADER), [made("small", lambda s: [claim(s, "x", share=0.005)])])
    assert verdicts.findings == ()
    assert "below 1 %" in verdicts.skipped[0].why


def test_without_trust_in_the_replay_there_are_findings_and_no_savings() -> None:
    view = view_of(SLOW_LOADER)
    view.__dict__["trust"] = Trust(0.02, 0.2)
    loader = made("loader", lambda s: [claim(s, "loader", fix=FIXES["dataloader"])])
    verdicts = judge(view, [loader])
    assert verdicts.joint is None
    assert verdicts.findings[0].saving_ns is None
    assert "20.0 % of the wall rests on what was not recorded" in verdicts.findings[0].unpriced


def about(cause: str, share: float, **more: object) -> Callable[[DeviceWindow], list[Claim]]:
    """A check that claims so much of the time of a cause."""
    return lambda s: [replace(claim(s, cause), named={cause: round(share * s.causes[cause])}, **more)]  # type: ignore[arg-type]


MOSTLY_LOADER = """
 step |....................
 host DDDDDDDDDDD.a.......
 s7   .............aaaaaaa
 repeat: 4
"""


def order(*rules: Rule) -> list[str]:
    """The findings where the loader takes 11 of 20 columns and the kernel 7."""
    return [finding.rule for finding in judge(view_of(MOSTLY_LOADER), list(rules)).findings]


def test_a_doubt_about_much_of_the_trace_comes_first_and_one_about_little_does_not() -> None:
    loader = made("loader", about("dataloader", 1, fix=FIXES["dataloader"]))
    assert order(loader, made("doubt", about("dataloader", 0.2, first=True))) == ["doubt", "loader"]
    assert order(loader, made("doubt", about("dataloader", 0.05, first=True))) == ["loader", "doubt"]
    assert order(loader, made("doubt", about("dataloader", 0.001, first=True))) == ["loader"]


def test_what_speaks_of_the_largest_loss_comes_first() -> None:
    """A question about it before a saving of something else; a saving of it before a question."""
    kernels = made("kernels", lambda s: [replace(claim(s, "k"), named={"unmodelled": s.causes["unmodelled"]})])
    question = made("question", about("dataloader", 0.9))
    assert order(kernels, question) == ["question", "kernels"]
    assert order(question, made("loader", about("dataloader", 1, fix=FIXES["dataloader"]))) == ["loader", "question"]


def test_who_answers_the_largest_loss_is_asked_when_nobody_else_does() -> None:
    answer = made("answer", about("dataloader", 1), answers=True)
    assert order(answer) == ["answer"]
    assert order(answer, made("part", about("dataloader", 0.4))) == ["answer", "part"]
    assert order(answer, made("loader", about("dataloader", 0.6))) == ["loader"]


def test_in_an_unknown_phase_who_may_speaks_in_doubt() -> None:
    one = made("one", about("dataloader", 1), phases=("training",), because="tvi-cause-launch", in_doubt=True)
    (finding,) = judge(view_of(MOSTLY_LOADER), [one]).findings
    assert (
        finding.confidence == "low" and "the phase is not known, and this is about training (--phase)" in finding.doubts
    )


def test_confidence_is_low_on_few_steps_and_says_so() -> None:
    check = made("x", lambda s: [claim(s, "x")])
    assert judge(view_of(SLOW_LOADER), [check]).findings[0].confidence == "high"
    few = judge(view_of(SLOW_LOADER.replace("repeat: 4", "repeat: 2")), [check]).findings[0]
    assert (few.confidence, few.doubts) == ("low", ("rests on 2 steps only: record at least 3 after warm-up",))
    unmarked = judge(view_of(" host DDDDDOO.aOO.bOO.cOO.d\n s7   .........a....b...c..d"), [check])
    assert unmarked.findings[0].doubts == (
        "no steps are marked and nothing repeats: record at least 3 steps after warm-up",
    )


def test_grades_are_those_of_the_weakest_input() -> None:
    view = view_of(SLOW_LOADER)
    plain = judge(view, [made("x", lambda s: [claim(s, "x")])]).findings[0]
    priced = judge(view, [made("x", lambda s: [claim(s, "x", fix=FIXES["host-sync"])])])
    loader = judge(view, [made("x", lambda s: [claim(s, "x", fix=FIXES["dataloader"])])]).findings[0]
    assert (plain.grade, loader.grade) == ("measured", "assumed")
    assert priced.findings == ()
    assert loader.verify == "look again."


def test_users_rules_are_found_and_a_broken_file_is_an_error(tmp_path: Path) -> None:
    source = (Path(__file__).parents[2] / "rules" / "dataloader.py").read_text(encoding="utf-8")
    (tmp_path / "my_loader.py").write_text(source.replace("def dataloader", "def my_loader"), encoding="utf-8")
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n", encoding="utf-8")
    rules, errors = find_rules(tmp_path)
    assert named_rule(rules, "my-loader").path == str(tmp_path / "my_loader.py")
    assert named_rule(rules, "dataloader")
    assert len(errors) == 1 and "nowhere_to_be_found" in errors[0]
    with pytest.raises(BadUsage, match="no such folder"):
        find_rules(tmp_path / "missing")
    with pytest.raises(BadUsage, match="no rule nothing"):
        named_rule(rules, "nothing")


def test_a_particular_wait_comes_before_the_host_in_general() -> None:
    view = view_of(SLOW_LOADER + " scale: 10us")

    def order(share: float, unpriced: str = "") -> list[str]:
        general = made("general", lambda s: [replace(claim(s, "g", fix=FIXES["cuda-graphs"], share=0.3), generic=True)])
        wait = made("wait", lambda s: [
            replace(claim(s, "w", fix=FIXES["dataloader"], share=share), particular=True, unpriced=unpriced)])  # fmt: skip
        return [finding.rule for finding in judge(view, [general, wait]).findings]

    assert order(0.25) == order(0.25, "it has no price") == ["wait", "general"]
    assert order(0.02) == order(0.02, "it has no price") == ["general", "wait"]


def nearly_empty(*, waits: bool) -> list[Event]:
    """Six steps of 9.1 ms, each with a kernel of 8.97 ms in 4 blocks; the host waits for it, recorded or not."""
    events = list[Event]()
    for i in range(6):
        at = 9_100 * i
        events += [step(i, at, at + 9_100), op("aten::_ctc_loss", at + 5, at + 40), call(at + 10, at + 20, i + 1)]
        events.append(kernel(at + 30, at + 9_000, i + 1, "ctc_loss_alpha", grid=[4, 1, 1], block=[32, 1, 1]))
        events += [sync(at + 50, at + 9_005)] if waits else []
    return events


def test_kernels_that_fill_the_wall_are_spoken_of_without_a_recorded_wait() -> None:
    """6 x 8.97 ms of kernels are 98.6 % of 54.6 ms: a replay that keeps the host's pace saves nothing, and says why."""
    (asked,) = advice(*nearly_empty(waits=False)).findings
    assert (asked.rule, asked.ns, asked.saving_ns) == ("nearly-empty-gpu", 6 * 8_970_000, None)
    assert "not recorded" in asked.unpriced
    priced = advice(*nearly_empty(waits=True)).findings[0]
    assert priced.rule == "nearly-empty-gpu" and priced.saving_ns is not None
