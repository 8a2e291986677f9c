"""What a rank finds in its environment is the contract of docs/recording.md."""

import json
from pathlib import Path

from topout.launch.rank_env import rank_environment
from topout.schema.spec import RunSpec
from topout.schema.world import Host, Rank, World

HOST = Host(name="n1", cores=(), memory_bytes=1)
RANKS = tuple(Rank(rank=r, local_rank=r, node_rank=0, host="n1", cores=(r,), num_threads=3) for r in range(2))
WORLD = World(hosts=(HOST,), ranks=RANKS, master_address="127.0.0.1", master_port=4000)
PLAIN = RunSpec()
RUN = Path("/runs/r-1")


def environment(spec: RunSpec = PLAIN, run: Path | None = RUN, **inherited: str) -> dict[str, str]:
    return rank_environment(RANKS[1], WORLD, spec, 9, run=run, inherited=inherited)


def test_the_variables_that_torch_scripts_expect():
    found = environment()
    assert {name: found[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")} == {
        "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
    }  # fmt: skip
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("127.0.0.1", "4000")
    assert found["TORCHELASTIC_RUN_ID"] == "r-1"


def test_a_single_rank_that_nobody_asked_for_is_started_as_python_starts_it():
    """nanoGPT and Accelerate make a process group wherever `RANK` is set, on CPUs with NCCL."""
    alone = World(hosts=(HOST,), ranks=RANKS[:1], master_address="127.0.0.1", master_port=4000)
    found = rank_environment(RANKS[0], alone, PLAIN, 9, run=RUN, inherited={})
    of_ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "HOROVOD_RANK")
    assert not set(of_ranks) & set(found)
    for spec in (RunSpec(num_ranks=1), RunSpec(per_node=1)):
        asked = rank_environment(RANKS[0], alone, spec, 9, run=RUN, inherited={})
        assert (asked["RANK"], asked["WORLD_SIZE"]) == ("0", "1")
    assert rank_environment(RANKS[0], alone, PLAIN, 9, run=RUN, inherited={}, scheduler="slurm")["RANK"] == "0"


def test_threads_follow_the_binding_unless_the_user_set_them():
    assert environment()["OMP_NUM_THREADS"] == "3"
    assert environment(OMP_NUM_THREADS="7")["OMP_NUM_THREADS"] == "7"


def test_threads_that_pbs_set_by_itself_are_not_the_users():
    of_pbs = {"PBS_JOBID": "1.s", "NCPUS": "32"}
    assert environment(**of_pbs, OMP_NUM_THREADS="32")["OMP_NUM_THREADS"] == "3"
    assert environment(**of_pbs, OMP_NUM_THREADS="8")["OMP_NUM_THREADS"] == "8"
    assert environment(PBS_JOBID="1.s", OMP_NUM_THREADS="32")["OMP_NUM_THREADS"] == "32", "after unset NCPUS"
    assert environment(NCPUS="32", OMP_NUM_THREADS="32")["OMP_NUM_THREADS"] == "32"


def test_no_binding_of_openmp_threads_since_loader_workers_would_inherit_one_core():
    assert not {"OMP_PROC_BIND", "OMP_PLACES"} & set(environment())


def test_the_recorder_hears_what_was_asked():
    spec = RunSpec(steps=5, data_share=0.02, batch=32, profile=(20, 29), filter=("a*",))
    assert json.loads(environment(spec)["TOPOUT_RECORD"]) == {
        "record": True, "steps": 5, "data_share": 0.02, "batch": 32, "onednn_backward": True, "keep_memory": False,
        "profile": [20, 29], "filter": ["a*"],
    }  # fmt: skip


def test_without_a_folder_nothing_is_recorded_but_steps_still_count():
    found = environment(RunSpec(steps=5), run=None, TOPOUT_RUN="/of/another/run")
    assert "TOPOUT_RUN" not in found
    asked = json.loads(found["TOPOUT_RECORD"])
    assert (asked["record"], asked["steps"]) == (False, 5)


def test_flight_recorder_only_when_recording_and_the_users_size_stands():
    assert environment()["TORCH_FR_BUFFER_SIZE"] == "20000"
    assert environment(TORCH_FR_BUFFER_SIZE="5")["TORCH_FR_BUFFER_SIZE"] == "5"
    assert "TORCH_FR_BUFFER_SIZE" not in environment(RunSpec(record=False))


def test_words_of_a_set_have_one_order_on_all_ranks_where_one_model_is_trained():
    for_one_device = RunSpec(ddp=True)
    assert environment(for_one_device)["PYTHONHASHSEED"] == "0"
    assert environment(for_one_device, PYTHONHASHSEED="random")["PYTHONHASHSEED"] == "0"
    assert environment(for_one_device, PYTHONHASHSEED="7")["PYTHONHASHSEED"] == "7"
    assert "PYTHONHASHSEED" not in environment()
