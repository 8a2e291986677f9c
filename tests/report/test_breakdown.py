"""The table of where the time goes: times per step that belong to the shares beside them."""

import re

from tests.tables import Plan, StepPlan, build_run
from topout.analyze.measure import measure_run
from topout.report.sections.breakdown import where_time_goes
from topout.schema.measures import Communication, Measures

MS = 1_000_000


def test_times_per_step_add_up_to_what_the_shares_are_of(tmp_path):
    """Steps of 30 ms and, after the last one, an evaluation that takes as long as all after the warm-up: 30 ms each."""
    num_steps = 19
    plan = StepPlan(input=3 * MS, forward=9 * MS, backward=15 * MS, optimizer=3 * MS)
    trail = Plan(trail_evaluation_ns=[num_steps * 30 * MS])
    measures, _ = measure_run(build_run(tmp_path, [[plan] * (1 + num_steps)], trail).folder)
    assert measures.window is not None and measures.window.num_steps == num_steps
    rows = re.findall(r"</i>(\w+)</th><td class=\"number\">([^<]+)</td><td class=\"number\">([^<]+)</td>",
                      where_time_goes(measures))  # fmt: skip
    told = {phase: (share.replace("\u202f", " "), time.replace("\u202f", " ")) for phase, share, time in rows}
    assert told["evaluation"] == ("50 %", "30.0 ms")
    assert told["backward"] == ("25 %", "15.0 ms")


def test_communication_that_backward_holds_is_said_to_be_there():
    shares = {"forward": 0.3, "backward": 0.7}
    assert "without exposed communication" in where_time_goes(Measures(shares=shares))
    hidden = Measures(shares=shares, communication=Communication(is_hidden=True))
    assert "with communication that it does not hide" in where_time_goes(hidden)
