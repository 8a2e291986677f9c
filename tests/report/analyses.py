"""An analysis made of literals: four ranks, one of them late."""

from dataclasses import replace

from topout.recommend.engine import find
from topout.schema.analysis import Analysis
from topout.schema.measures import (
    Communication,
    Environment,
    Input,
    Measures,
    Pop,
    RankTime,
    StepTime,
    Straggler,
    Verdict,
    Window,
)

SHARES = {"input": 0.12, "forward": 0.2, "backward": 0.33, "wait": 0.25, "transfer": 0.03, "optimizer": 0.06}
MEASURES = Measures(
    window=Window(first_step=12, last_step=211, num_steps=200, num_warmup_steps=12, elapsed_ns=10_420_000_000),
    step=StepTime(mean_ns=52.9e6, median_ns=52.1e6, p05_ns=50e6, p95_ns=61e6, samples_per_s=1228.3),
    shares={**SHARES, "other": 0.01},
    ranks=tuple(RankTime(rank=rank, host="n01", shares=SHARES, busy_step_ns=4e7) for rank in range(4)),
    pop=Pop(
        parallel_efficiency=0.62,
        load_balance=0.65,
        communication_efficiency=0.954,
        serialisation_efficiency=0.99,
        transfer_efficiency=0.963,
        work_efficiency=0.88,
        overall_efficiency=0.546,
    ),
    input=Input(wait_share=0.12, num_workers=0, opens_per_s=3000.0),
    communication=Communication(wait_share=0.25, transfer_share=0.03),
    stragglers=(Straggler(rank=2, host="n01", phase="backward", excess_share=0.33, is_persistent=True),),
    environment=Environment(num_ranks=4, num_cores=8, threads_per_rank=2, is_bound=True),
    not_measured=("GPU use was not sampled: no NVIDIA GPU was found.", "No peak is known for this device."),
)
LATE_RANK = Analysis(
    run="2026-11-15-train-1",
    script="examples/train.py",
    status="finished",
    exit_code=0,
    duration_s=48.21,
    verdict=Verdict(
        name="load-imbalance",
        share=0.25,
        runner_up="input-decode",
        runner_up_share=0.12,
        evidence=("Ranks wait for a late one 25 % of the time.", "Rank 2 on n01 arrives last in 97 % of steps."),
        ranks=(2,),
        hosts=("n01",),
        phase="backward",
    ),
    findings=find(MEASURES),
    measures=MEASURES,
)
NOTHING_SEEN = replace(
    LATE_RANK,
    status="failed",
    exit_code=7,
    duration_s=None,
    verdict=None,
    findings=(),
    measures=Measures(not_measured=("No optimizer step was seen.",)),
)
