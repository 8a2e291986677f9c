"""Runs of Keras and JAX: what their taps cannot tell apart is said, and nothing is said that holds for torch alone."""

import json
from pathlib import Path

import pytest

from tests.tables import START_NS, Plan, Rows, StepPlan, build_run
from topout.analyze.measure import measure_run
from topout.analyze.mixed_forward import is_forward_mixed
from topout.schema.event import Kind
from topout.schema.measures import Measures, Verdict
from topout.schema.run_folder import RUN_VERSION, RunFolder

MS = 1_000_000
KERAS = {"keras_version": "3.15.1", "tensorflow_version": "2.21.0", "keras_backend": "tensorflow"}


def measure_rows(path: Path, rows: Rows, facts: dict[str, object]) -> tuple[Measures, Verdict | None]:
    path.mkdir()
    folder = RunFolder(path)
    folder.run_json.write_text(json.dumps({"version": RUN_VERSION, "status": "finished"}))
    folder.events(0).write_bytes(b"".join(rows.blocks({"host": "n01", **facts})))
    return measure_run(folder)


@pytest.mark.parametrize(
    ("facts", "said", "unsaid"),
    [
        ({}, "never imported torch", "Keras"),
        (KERAS, "Keras' fit and train_on_batch are seen", "torch"),
        ({"jax_version": "0.10.2"}, "jax.jit", "torch"),
        ({"torch_version": "2.13.0"}, "torch.optim", "Keras"),
        ({"torch_version": "2.13.0", "tensorflow_version": "2.21.0"}, "torch.optim", "Keras"),
    ],
)
def test_a_run_without_steps_is_told_what_holds_for_its_framework(facts, said, unsaid, tmp_path):
    measures, verdict = measure_rows(tmp_path / "run", Rows(), facts)
    (sentence,) = measures.not_measured
    assert verdict is None
    assert said in sentence
    assert unsaid not in sentence
    assert "topout.step()" in sentence


def test_ranks_that_the_script_starts_itself_are_named_as_the_reason(tmp_path):
    measures, verdict = measure_rows(tmp_path / "run", Rows(), {"torch_version": "2.13.0", "num_spawned": 4})
    (sentence,) = measures.not_measured
    assert verdict is None
    assert sentence.startswith("The script starts 4 ranks itself (torch.multiprocessing.spawn)")


def test_a_compiled_step_stands_under_backward_and_that_is_said_once(tmp_path):
    steps = [[StepPlan(input=10 * MS, backward=90 * MS)] * 6] * 2
    measures, _ = measure_run(build_run(tmp_path / "run", steps, Plan(num_buckets=0, facts=KERAS)).folder)
    (sentence,) = measures.not_measured
    assert "one compiled function, communication included" in sentence
    assert "efficiencies of several ranks are left out" in sentence
    assert measures.pop is None


def test_one_rank_that_runs_compiled_steps_has_its_efficiencies(tmp_path):
    steps = [[StepPlan(input=10 * MS, backward=90 * MS)] * 6]
    measures, _ = measure_run(build_run(tmp_path / "run", steps, Plan(num_buckets=0, facts=KERAS)).folder)
    assert measures.pop is not None
    assert measures.pop.work_efficiency == pytest.approx(0.9)


def test_several_ranks_of_jax_have_no_efficiencies(tmp_path):
    folder = RunFolder(tmp_path)
    folder.run_json.write_text(json.dumps({"version": RUN_VERSION, "status": "finished"}))
    for rank in range(2):
        blocks = marked_loop(MS, 100 * MS).blocks({"host": "n01", "jax_version": "0.10.2"})
        folder.events(rank).write_bytes(b"".join(blocks))
    measures, _ = measure_run(folder)
    assert measures.pop is None
    assert any(sentence.startswith("Efficiencies: communication inside") for sentence in measures.not_measured)


def test_keras_on_torch_is_a_run_of_torch(tmp_path):
    facts = {**KERAS, "keras_backend": "torch", "torch_version": "2.13.0"}
    measures, _ = measure_run(build_run(tmp_path / "run", [[StepPlan(backward=90 * MS)] * 6], Plan(facts=facts)).folder)
    assert measures.not_measured == ()


def marked_loop(input_ns: int, length_ns: int) -> Rows:
    """Ten steps that begin with input that the script marked."""
    rows = Rows()
    for step in range(10):
        start_ns = START_NS + step * length_ns
        rows.add(Kind.INPUT, start_ns, input_ns)
        rows.add(Kind.STEP, start_ns, length_ns, ref=step)
    return rows


def test_in_a_loop_of_jax_that_marks_its_steps_the_rest_is_computing(tmp_path):
    measures, verdict = measure_rows(tmp_path / "run", marked_loop(MS, 100 * MS), {"jax_version": "0.10.2"})
    assert measures.shares["forward"] == pytest.approx(0.99)
    assert verdict is not None and verdict.name == "compute"
    assert any("what nothing else explains stands under forward" in sentence for sentence in measures.not_measured)


def test_in_a_loop_of_jax_that_marks_its_input_a_missing_backward_is_no_evaluation(tmp_path):
    measures, verdict = measure_rows(tmp_path / "run", marked_loop(60 * MS, 100 * MS), {"jax_version": "0.10.2"})
    assert (measures.shares["input"], measures.shares["evaluation"]) == (pytest.approx(0.6), 0)
    assert verdict is not None and verdict.phase == "input"


@pytest.mark.parametrize("facts", [{}, {"torch_version": "2.13.0"}])
def test_in_a_marked_loop_of_any_framework_a_missing_backward_is_no_evaluation(facts, tmp_path):
    measures, verdict = measure_rows(tmp_path / "run", marked_loop(5 * MS, 100 * MS), facts)
    assert (measures.shares["input"], measures.shares["forward"]) == (pytest.approx(0.05), pytest.approx(0.95))
    assert verdict is not None and verdict.name == "compute"
    assert is_forward_mixed(measures.shares)  # reads "up to": whatever the script does is in it
    assert any("No pass and no backward was seen" in sentence for sentence in verdict.evidence)


def test_optimizer_steps_tell_what_is_trained_where_no_backward_is_called(tmp_path):
    rows = Rows()
    for step in range(10):
        start_ns = START_NS + step * 100 * MS
        rows.add(Kind.INPUT, start_ns, 5 * MS, value=16, ref=0)
        rows.add(Kind.OPTIMIZER, start_ns + 80 * MS, 10 * MS)
        rows.add(Kind.STEP, start_ns, 90 * MS, ref=step)
    measures, verdict = measure_rows(tmp_path / "run", rows, {"torch_version": "2.13.0"})
    assert measures.shares["evaluation"] == 0
    assert measures.shares["optimizer"] == pytest.approx(0.1, rel=0.05)
    assert verdict is not None and verdict.name == "compute"
    assert measures.step is not None and measures.step.samples_per_s == pytest.approx(160, rel=0.05)
    assert [
        sentence for sentence in measures.not_measured if sentence.startswith("Forward and backward: none was seen")
    ]


def test_copies_to_a_device_tell_nothing_of_computing_where_no_backward_is_called(tmp_path):
    rows = marked_loop(5 * MS, 100 * MS)
    for step in range(10):
        rows.add(Kind.DEVICE, START_NS + step * 100 * MS, MS, name="copy", ref=step)
    measures, verdict = measure_rows(tmp_path / "run", rows, {"torch_version": "2.13.0"})
    # and not 94 % in which the device had nothing to do
    assert measures.shares["forward"] == pytest.approx(0.95)
    assert measures.compute.host_share is None
    assert verdict is not None and verdict.name == "compute"
