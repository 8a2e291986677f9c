"""`topout run`: a training script on all GPUs or cores of a machine or a job, recorded and explained without an edit.

Only the options and their help; `training` runs the job and explains it. An ordinary call never comes here: see
`run_options`.
"""

from typing import Annotated

from cyclopts import Parameter

from topout.cli.app import AS_TYPED
from topout.cli.training import train


def run(
    *script_and_args: Annotated[str, AS_TYPED, Parameter(name="SCRIPT-AND-ARGS")],
    num_ranks: Annotated[int | None, Parameter(name=["-n", "--num-ranks"])] = None,
    nodes: int | None = None,
    per_node: str | None = None,
    module: Annotated[bool, Parameter(name=["-m", "--module"], negative="")] = False,
    steps: int | None = None,
    data_share: str | None = None,
    batch: int | None = None,
    profile: str | None = None,
    filter: Annotated[tuple[str, ...], Parameter(name="--filter", consume_multiple=False, negative="")] = (),
    packs: Annotated[tuple[str, ...], Parameter(name="--packs", consume_multiple=False, negative="")] = (),
    ddp: Annotated[bool, Parameter(negative="")] = False,
    no_onednn_backward: Annotated[bool, Parameter(negative="")] = False,
    keep_memory: Annotated[bool, Parameter(negative="")] = False,
    bind: str | None = None,
    no_bind: Annotated[bool, Parameter(negative="")] = False,
    interface: str | None = None,
    start_timeout: float | None = None,
    restarts: int | None = None,
    min_nodes: int | None = None,
    record: bool | None = None,
    runs: str | None = None,
    report: bool = True,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
    quiet: Annotated[bool, Parameter(name=["-q", "--quiet"], negative="")] = False,
) -> int:
    """Run a training script on every GPU or core, of this machine or of the whole job, and say what holds it back.

    Inside a job of Slurm, LSF, PBS, SGE or Flux it runs on all of the job's hosts, whether it is started once or by
    srun, mpirun or jsrun for every rank.

    Options stand before SCRIPT; everything after it belongs to the script. Without SCRIPT, a small network is
    trained on handwritten digits, to show what a run gives.

    Parameters
    ----------
    script_and_args
        The script and its own arguments.
    num_ranks
        Number of ranks. Default: as many as the scheduler was asked for, else one a GPU or a NUMA domain.
    nodes
        How many hosts of the allocation to use. Default: all.
    per_node
        Ranks on each host, or one for each gpu, socket, numa or core; 1 for code that drives several GPUs itself.
    module
        SCRIPT is the name of a module, as in python -m.
    steps
        End cleanly after so many optimizer steps.
    data_share
        Loaders yield only this share of their batches, such as 2%.
    batch
        Samples in a batch of one rank, set in the DataLoaders that feed training.
    profile
        Steps to look into with torch.profiler, such as 20-29.
    filter
        Leave out spans by name; shell patterns, repeatable.
    packs
        Serve a folder's files from a pack of it, or from all packs in a folder; ROOT=PACK where it lies elsewhere.
    ddp
        Make a script for one device data-parallel: batches dealt out to ranks, gradients averaged.
    no_onednn_backward
        Compute gradients on CPUs with torch's own kernels, which are faster for convolutions on ARM.
    keep_memory
        Keep memory that a step has freed for the next one: for steps on CPUs that fault much, with more memory.
    bind
        Bind each rank to cores of its gpu, socket, numa domain, core or node, or none; report prints who is where.
    no_bind
        The same as --bind none.
    interface
        Network interface over which hosts talk, such as ib0. Default: by route and speed.
    start_timeout
        Seconds to wait for the next host to arrive. Default: 25.
    restarts
        Start the job again so many times after a rank or a host failed.
    min_nodes
        Go on after a failure with no fewer hosts than this. Default: all.
    record
        Record what happens in each rank. Default: yes.
    runs
        Folder in which run folders are made. Default: topout-runs.
    report
        Analyse the run at its end and write report.html. Default: yes.
    json_output
        The analysis as JSON on stdout; the script's own output goes to stderr.
    quiet
        Say nothing but warnings and errors.
    """
    return train(locals())
