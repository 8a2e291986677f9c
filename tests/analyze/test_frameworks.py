"""Runs of Keras and JAX: what their taps cannot tell apart is said, and nothing is said that holds for torch alone."""

import json
from pathlib import Path

import pytest

from tests.tables import START_NS, Plan, Rows, StepPlan, build_run
from topout.analyze.measure import measure_run
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


def test_in_a_loop_of_torch_batches_without_a_backward_stay_an_evaluation(tmp_path):
    measures, _ = measure_rows(tmp_path / "run", marked_loop(60 * MS, 100 * MS), {"torch_version": "2.13.0"})
    assert measures.shares["evaluation"] > 0.5
