"""Numbers that no job can have are refused before anything starts, with the place that says them."""

import pytest

from topout.launch.bounds import check_min_nodes, check_numbers
from topout.schema.errors import TopoutError
from topout.schema.spec import RunSpec


@pytest.mark.parametrize(
    ("spec", "says", "do"),
    [
        (RunSpec(num_ranks=0), "-n 0 is not possible.", "try -n 1"),
        (RunSpec(nodes=-1), "--nodes -1 is not possible.", "try --nodes 1"),
        (RunSpec(per_node=0), "--per-node 0 is not possible.", "try --per-node 1"),
        (RunSpec(steps=0), "--steps 0 is not possible.", "try --steps 1"),
        (RunSpec(restarts=-1), "--restarts -1 is not possible.", "try --restarts 0"),
        (RunSpec(min_nodes=0), "--min-nodes 0 is not possible.", "try --min-nodes 1"),
        (RunSpec(start_timeout_s=0.0), "--start-timeout 0 is not possible.", "try --start-timeout 25"),
        (RunSpec(start_timeout_s=float("nan")), "--start-timeout nan is not possible.", "try --start-timeout 25"),
        (RunSpec(start_timeout_s=float("inf")), "--start-timeout inf is not possible.", "try --start-timeout 25"),
    ],
)
def test_a_number_that_no_job_can_have_is_an_error(spec, says, do):
    with pytest.raises(TopoutError) as error:
        check_numbers(spec)
    assert (error.value.problem, error.value.do, error.value.exit_code) == (says, do, 2)
    assert error.value.why.startswith("it must be ")


def test_what_a_job_may_have_is_none():
    check_numbers(RunSpec())
    check_numbers(RunSpec(num_ranks=1, nodes=1, per_node="gpu", steps=1, restarts=0, min_nodes=1, start_timeout_s=0.5))


def test_the_file_that_says_it_is_named():
    with pytest.raises(TopoutError) as error:
        check_numbers(RunSpec(restarts=-1, origins={"restarts": "topout.toml:2"}))
    assert error.value.why == "it must be at least 0; topout.toml:2 says it"


def test_more_hosts_than_there_are_cannot_be_left():
    asked = RunSpec(min_nodes=5, origins={"min_nodes": "command line"})
    with pytest.raises(TopoutError, match="--min-nodes 5 is more than there are") as error:
        check_min_nodes(asked, 4)
    assert error.value.exit_code == 2
    check_min_nodes(asked, 5)
    check_min_nodes(RunSpec(), 1)


def test_a_file_for_the_cluster_may_ask_for_more_hosts_than_a_trial_has():
    check_min_nodes(RunSpec(min_nodes=5, origins={"min_nodes": "topout.toml:2"}), 1)
