"""Which mesh is proposed, and what it holds and costs, where both can be worked out by hand."""

from dataclasses import replace

import pytest

from topout.schema.errors import TopoutError
from topout.study.description import Ranged, read_job, read_system
from topout.study.job import Checkpoint, Compute, Gradients, Input, Job, Memory
from topout.study.mesh_model import Mesh, bytes_per_rank, mesh_step
from topout.study.mesh_proposal import propose, propose_each
from topout.study.plan import Deadline, plan
from topout.study.step_model import expected_step
from topout.study.system import Link, System
from topout.study.work import Work
from topout.train.mesh.spec import check_world, read_spec

GB = 1e9
SYSTEM = System(
    title="two nodes of four",
    nodes=64,
    ranks_per_node=4,
    inside=Link(latency_s=1e-6, bytes_per_s=100 * GB),
    between=Link(latency_s=1e-6, bytes_per_s=10 * GB),
)
MEMORY = Memory(
    parameter_bytes=8 * GB, optimizer_bytes=16 * GB, activation_bytes=0.5 * GB, blocks=8, boundary_bytes=1e6,
    device_bytes=40 * GB,
)  # fmt: skip
JOB = Job(
    title="a model",
    compute=Compute(forward_s=0.1, backward_s=0.2),
    gradients=Gradients(bytes=8 * GB, tensors=100),
    input=Input(samples=8),
    memory=MEMORY,
)
WORK = Work(samples=1e6)


def ranged(thing):
    return Ranged(thing, {})


def test_a_rank_holds_what_the_splits_leave_it():
    # 8 + 8 + 16 GB of state and 8 samples of half a GB
    assert bytes_per_rank(Mesh(row_samples=8), MEMORY) == pytest.approx(36 * GB)
    assert bytes_per_rank(Mesh(tp=2, row_samples=8), MEMORY) == pytest.approx(18 * GB)
    # a quarter of the state, two of eight blocks gathered, all activations
    assert bytes_per_rank(Mesh(fsdp=4, row_samples=8), MEMORY) == pytest.approx((8 + 2 + 4) * GB)
    # a stage holds half the state; 2 of 4 microbatches (1 GB each) with half of the layers
    assert bytes_per_rank(Mesh(pp=2, microbatches=4, row_samples=8), MEMORY) == pytest.approx((16 + 1) * GB)
    assert bytes_per_rank(Mesh(microbatches=8, row_samples=8), MEMORY) == pytest.approx(32.5 * GB)


def test_gradients_that_microbatches_add_up_are_held_whole():
    # a quarter of 8 + 16 GB, all 8 of gradients, two blocks, and half of the activations
    assert bytes_per_rank(Mesh(fsdp=4, microbatches=2, row_samples=8), MEMORY) == pytest.approx((6 + 8 + 2 + 2) * GB)
    # a stage has half of it all, and keeps its parameters gathered
    mesh = Mesh(fsdp=4, pp=2, microbatches=4, row_samples=8)
    assert bytes_per_rank(mesh, MEMORY) == pytest.approx((3 + 4 + 4 + 1) * GB)


def test_replicas_alone_cost_what_the_step_model_says():
    job, summit = read_job("resnet50-v100").value, read_system("summit").value
    assert mesh_step(Mesh(dp=96, row_samples=256), job, summit, 16).parts == expected_step(job, summit, 16).parts


def test_an_epoch_of_a_mesh_has_as_many_steps_as_its_rows_make():
    job = replace(JOB, checkpoint=Checkpoint(bytes=GB, bytes_per_s=GB, every_samples=160))
    # two rows of eight samples on eight ranks: 16 a step, so one save in ten
    assert mesh_step(Mesh(dp=2, tp=4, row_samples=8), job, SYSTEM, 2).parts["checkpoint"] == pytest.approx(0.1)


def test_a_pipeline_stands_idle_by_its_formula():
    step = mesh_step(Mesh(pp=4, microbatches=8, row_samples=8), JOB, SYSTEM, 1)
    # pieces of one sample instead of eight take 8^0.1 times as long
    assert step.parts["compute"] == pytest.approx(0.3 / 4 * 8**0.1)
    assert step.low_s == pytest.approx(step.seconds - (1 - 8**-0.1) * (step.parts["compute"] + step.parts["bubble"]))
    # share (p - 1) / (m + p - 1) of compute and bubble together
    assert step.parts["bubble"] / (step.parts["bubble"] + step.parts["compute"]) == pytest.approx(3 / 11)
    # 2 x 11 slots, a megabyte each inside the node
    assert step.parts["pipeline"] == pytest.approx(22 * (1e-6 + 1e6 / (100 * GB)))


def test_tensor_parallelism_sums_four_times_a_block():
    step = mesh_step(Mesh(tp=4, row_samples=8), JOB, SYSTEM, 1)
    # a ring of four: 2 x 3/4 of 8 MB, and a message
    assert step.parts["tensor parallel"] == pytest.approx(4 * 8 * (1e-6 + 1.5 * 8e6 / (100 * GB)))


def test_sharding_moves_parameters_twice_and_gradients_once():
    step = mesh_step(Mesh(fsdp=8, row_samples=8), JOB, SYSTEM, 2)
    # 24 GB, 7/8 of it, over the one link of a node; 0.3 s of it hidden
    moved = 7 / 8 * 24 * GB / (10 * GB) + 3 * 8 * 7 * 1e-6
    assert step.parts["sharding"] == pytest.approx(moved - 0.3)
    assert step.high_s == pytest.approx(step.seconds + 0.3)


def test_only_the_last_microbatch_scatters_gradients():
    job = replace(JOB, memory=replace(MEMORY, gradient_bytes=4 * GB))
    step = mesh_step(Mesh(fsdp=8, microbatches=4, row_samples=8), job, SYSTEM, 2)
    busy = 0.3 * 4**0.1
    # 8 GB gathered twice for each of four, 4 GB scattered once
    moved = 7 / 8 * (4 * 16 + 4) * GB / (10 * GB) + 9 * 8 * 7 * 1e-6
    assert step.parts["sharding"] == pytest.approx(moved - busy)


def test_a_scatter_hides_behind_its_own_microbatch_alone():
    link = Link(latency_s=0.0, bytes_per_s=180 * GB)
    job = replace(JOB, memory=replace(MEMORY, gradient_bytes=64 * GB))
    step = mesh_step(Mesh(fsdp=8, microbatches=4, row_samples=8), job, replace(SYSTEM, inside=link, between=link), 2)
    # 16 GB gathered in 0.078 s, less than a microbatch computes; 64 GB of gradients are scattered behind the last
    assert step.parts["sharding"] == pytest.approx(7 / 8 * 80 / 180 - 0.3 * 4**0.1 / 4)


def test_a_model_that_fits_and_may_grow_gets_no_mesh():
    assert propose(ranged(JOB), ranged(SYSTEM), 2, WORK) is None
    assert propose(ranged(JOB), ranged(SYSTEM), 2, replace(WORK, critical_batch=(1e4, 1e4, 1e4))) is None


def test_a_model_that_does_not_fit_is_split_until_it_does(tmp_path):
    small = replace(JOB, memory=replace(MEMORY, device_bytes=16 * GB))
    found = propose(ranged(small), ranged(SYSTEM), 2, WORK)
    assert found is not None
    assert "does not fit" in found.why
    assert found.replicas_hours is None
    assert found.bytes_per_rank <= 0.9 * 16 * GB
    assert found.mesh.tp <= SYSTEM.ranks_per_node
    assert found.step_s == pytest.approx(sum(found.parts.values()))
    assert found.low_s <= found.step_s <= found.high_s
    path = tmp_path / "mesh.toml"
    path.write_text(found.toml)
    spec = read_spec(path)
    check_world(spec, 8)
    assert (spec.dp, spec.fsdp, spec.tp, spec.pp) == (found.mesh.dp, found.mesh.fsdp, found.mesh.tp, found.mesh.pp)


def test_past_the_critical_batch_ranks_share_rows_instead_of_adding_some():
    # 64 nodes x 4 ranks x 8 samples = 2,048 against 64
    found = propose(ranged(JOB), ranged(SYSTEM), 64, replace(WORK, critical_batch=(64, 64, 64)))
    assert found is not None
    assert "32.0 times the critical one" in found.why
    assert found.mesh.batch < 2048
    assert found.replicas_hours is not None
    assert found.hours < 0.5 * found.replicas_hours


def test_without_blocks_only_the_batch_shrinks_and_it_is_said():
    job = replace(JOB, memory=Memory())
    found = propose(ranged(job), ranged(SYSTEM), 64, replace(WORK, critical_batch=(64, 64, 64)))
    assert found is not None
    assert (found.mesh.dp, found.mesh.tp, found.mesh.pp) == (256, 1, 1)
    assert found.mesh.row_samples < 8
    assert any("tp and pp were not considered" in note for note in found.notes)


def test_a_model_that_fits_in_no_way_is_an_error():
    small = replace(JOB, memory=replace(MEMORY, device_bytes=0.1 * GB))
    with pytest.raises(TopoutError, match="in no way"):
        propose(ranged(small), ranged(SYSTEM), 2, WORK)


def test_a_device_of_the_table_lends_its_memory():
    huge = replace(JOB, memory=replace(MEMORY, parameter_bytes=20 * GB, optimizer_bytes=40 * GB, device_bytes=0.0))
    found = propose(ranged(huge), ranged(replace(SYSTEM, device="H100 SXM")), 2, WORK)
    assert found is not None
    assert found.device_bytes == pytest.approx(80 * GB, rel=0.1)


def test_where_replicas_do_not_fit_the_plan_is_one_of_meshes():
    small = replace(JOB, memory=replace(MEMORY, device_bytes=16 * GB))
    meshes = propose_each(ranged(small), ranged(SYSTEM), [1, 2, 4], WORK)
    found = plan(ranged(small), ranged(SYSTEM), WORK, [1, 2, 4], meshes=meshes, deadline=Deadline(hours=1e6))
    assert [choice.nodes for choice in found.choices] == [1, 2, 4]
    assert found.choices[1].hours == meshes[2].hours
    assert found.mesh == meshes[found.recommended.nodes]
    assert found.within is not None
    assert found.within.nodes == found.cheapest.nodes
    assert propose_each(ranged(JOB), ranged(SYSTEM), [1, 2], WORK) == {}


def test_nodes_on_which_nothing_fits_are_left_out():
    # 32 GB of state over 4 ranks is 8 GB, and two gathered blocks are 2: too much for one node, not for two
    small = replace(JOB, memory=replace(MEMORY, device_bytes=6.5 * GB, activation_bytes=0.0))
    assert list(propose_each(ranged(small), ranged(SYSTEM), [1, 2], WORK)) == [2]
    with pytest.raises(TopoutError, match="in no way"):
        propose_each(ranged(small), ranged(SYSTEM), [1], WORK)
