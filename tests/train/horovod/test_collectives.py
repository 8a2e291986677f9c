"""What Horovod's documentation promises of its collectives, on two real ranks."""

import sys

import numpy as np
import pytest
import torch

from tests.train.conftest import REPOSITORY, start_ranks

FACE = REPOSITORY / "topout" / "train" / "horovod" / "face"
ENV = {"PYTHONPATH": f"{REPOSITORY}:{FACE}"}


@pytest.fixture(scope="module")
def found() -> list[dict]:
    import json
    from pathlib import Path

    processes = start_ranks(Path(__file__).with_name("collectives.py"), 2, env=ENV)
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def test_ranks_know_their_places(found) -> None:
    assert [one["place"] for one in found] == [[0, 2, 0, 2, 1], [1, 2, 1, 2, 1]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("average", [1.5, 3.0]),
        ("sum, old style", [3.0, 6.0]),
        ("max", [2.0, 4.0]),
        ("product", [2.0, 8.0]),
        ("scaled", [15.0, 30.0]),
        ("fp16", True),
        ("int average", [7]),
        ("grouped", [[3.0, 6.0], [1]]),
        ("in place", [3.0, 6.0]),
        ("async", [3.0, 6.0]),
        ("polled", True),
        ("gathered", [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]),
        ("broadcast", [1]),
        ("objects", [{"of": 1}, ["", "x"]]),
        ("refused", "The object of rank 1 cannot be sent to other ranks."),
        ("parameters", [[1.0, 1.0], 1]),
        ("through allreduce", [3.0, 3.0]),
        ("removed", True),
        ("error class", True),
    ],
)
def test_all_ranks_get(found, name, expected) -> None:
    assert [one[name] for one in found] == [expected, expected]


@pytest.mark.parametrize(
    ("name", "on_rank_0", "on_rank_1"),
    [
        ("not changed", [1.0, 2.0], [2.0, 4.0]),
        ("alltoall", [[0, 1, 10, 11], [2, 2]], [[2, 12], [1, 1]]),
        ("even alltoall", [0, 10], [1, 11]),
        ("reducescatter", [0.0, 2.0], [4.0]),
        # the average over ranks of what each rank's gradient says of this rank's rows
        ("through allgather", [1.5], [1.5, 1.5]),
        ("through broadcast", [1.5], [0.0]),
        ("set", [False, 1], [True, 1]),
    ],
)
def test_each_rank_gets_its_own(found, name, on_rank_0, on_rank_1) -> None:
    assert [one[name] for one in found] == [on_rank_0, on_rank_1]


@pytest.mark.parametrize("way", ["from 1", "gathered"])
def test_numpys_numbers_and_arrays_travel_as_they_are(found, way) -> None:
    texts = np.array(["z", "bc"])
    given = {
        "lr": 0.1 * np.sqrt(2),
        np.int64(1): (np.float32(1.5), [np.array([[1, 3], [2, 1]], dtype=np.int16)]),
        "others": [texts, np.zeros((0, 3)), np.array(True), np.arange(3, dtype=">f8"), {np.uint8(7)}],
        "twice": texts,
    }
    # the one array is one on arrival too, and can be written to
    assert [one[f"numpy {way}"] for one in found] == [[repr(given), True]] * 2


def test_whole_numbers_of_16_bits_travel_as_others_do(found) -> None:
    values = [600, 1], [300, 300, 1], [300, 1], [300, 1], [300, 300], [600]
    for one in found:
        assert one["short"] == [["torch.int16", value] for value in values]


def test_a_process_set_reduces_over_its_members_alone(found) -> None:
    assert found[1]["in set"] == [2.0, 4.0]
    assert "in set" not in found[0]


def test_batch_norm_over_ranks_is_batch_norm_of_the_whole_batch(found) -> None:
    norm = torch.nn.BatchNorm1d(1)
    whole = torch.arange(8.0).view(-1, 1).requires_grad_()
    out = norm(whole)
    (out * whole.detach().square()).sum().backward()
    outs, gradients = (torch.tensor(found[0]["batch norm"][i] + found[1]["batch norm"][i]) for i in (0, 1))
    torch.testing.assert_close(outs, out.detach())
    torch.testing.assert_close(gradients, whole.grad, atol=1e-5, rtol=1e-4)
    for one in found:
        torch.testing.assert_close(torch.tensor(one["batch norm"][2]), norm.running_mean)
        torch.testing.assert_close(torch.tensor(one["batch norm"][3]), norm.running_var)
        # a tenth of the mean of 100 to 107
        assert one["half"] == ["torch.float16", True, pytest.approx(10.35)]


def different(why: str) -> str:
    return f"TopoutError: broadcast_parameters: the ranks have different models.\n  why  {why}\n  do   build the same"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("other shapes", "HorovodInternalError: allreduce: ranks passed tensors of different shapes: [[1], [2]]"),
        ("other types", "HorovodInternalError: ranks passed tensors of different types: ['float32', 'float64']"),
        *(
            (f"other roots, {name}", f"HorovodInternalError: {name}: ranks passed different root ranks: [0, 1]")
            for name in ("broadcast", "broadcast_", "broadcast_parameters", "broadcast_object")
        ),
        ("no rows", "ValueError: reducescatter: a tensor without dimensions has no rows"),
        ("adasum", "TopoutError: op=hvd.Adasum is not served."),
        ("both", "ValueError: The op parameter supersedes average."),
        ("models", different("tensor 0 is «a, (1,), torch.float32» on rank 0 and «a, (2,), torch.float32» on rank 1")),
        (
            "models, same count",
            different("tensor 1 is «b, (2, 3), torch.float32» on rank 0 and «b, (3, 2), torch.float32» on rank 1"),
        ),
        ("a layer less", different("tensor 1 is «b, (1,), torch.float32» on rank 0 and «none» on rank 1")),
        ("dtypes", different("tensor 0 is «(2,), torch.float32» on rank 0 and «(2,), torch.float16» on rank 1")),
        ("refused array", "TopoutError: The object of rank 1 cannot be sent to other ranks.\n  why  Numbers, texts"),
        ("after shutdown", "ValueError: Horovod has not been initialized; use hvd.init()."),
        ("some ranks", "TopoutError: hvd.init got comm=[0], and the job has 2 ranks."),
        ("another order", "TopoutError: hvd.init got comm=[1, 0], and the job has 2 ranks."),
    ],
)
def test_a_mistake_is_the_same_error_on_all_ranks(found, name, says) -> None:
    assert all(one[name].startswith(says) for one in found), [one[name] for one in found]


def test_all_documented_names_are_there() -> None:
    documented = """
        init shutdown is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous
        mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built
        rocm_built start_timeline stop_timeline ProcessSet global_process_set add_process_set remove_process_set
        Average Sum Adasum Min Max Product HorovodInternalError Compression DistributedOptimizer SyncBatchNorm elastic
        allreduce allreduce_ allreduce_async allreduce_async_ grouped_allreduce grouped_allreduce_
        grouped_allreduce_async grouped_allreduce_async_ sparse_allreduce_async allgather allgather_async
        grouped_allgather grouped_allgather_async broadcast broadcast_ broadcast_async broadcast_async_ alltoall
        alltoall_async reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async join barrier
        poll synchronize broadcast_parameters broadcast_optimizer_state broadcast_object allgather_object
    """.split()
    sys.path.insert(0, str(FACE))
    try:
        import horovod.torch as hvd
    finally:
        sys.path.remove(str(FACE))
    assert [name for name in documented if not hasattr(hvd, name)] == []
    assert hvd.Average == 0 and hvd.Sum == 1 and hvd.Adasum == 2
