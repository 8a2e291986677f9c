"""A run made of literals, for looking at the page: R ranks x S steps, the same every time.

One rank in eight reads slowly; every hundredth step saves a checkpoint; all ranks end a step together.
"""

import numpy as np

from topout.analyze.marks import NamedSpans
from topout.analyze.series import Series
from topout.schema.analysis import Analysis
from topout.schema.finding import Finding
from topout.schema.measures import (
    PHASES,
    Communication,
    Compute,
    Environment,
    Input,
    Measures,
    Pop,
    RankTime,
    StepTime,
    Verdict,
    WaterfallBar,
    Window,
)

HOSTILE = '</script><img src=x onerror="document.title=1">'
"""A name that breaks a page that trusts it."""
MS = 1_000_000


def make_series(num_ranks: int, num_steps: int, *, ranks_per_host: int = 4, span_name: str = "augment") -> Series:
    noise = np.random.default_rng(7)
    mean_ms = {"input": 21.0, "forward": 9.0, "backward": 14.0, "transfer": 3.0, "optimizer": 1.4, "other": 0.6}
    phase_ns = np.zeros((num_ranks, num_steps, len(PHASES)), dtype=np.int64)
    for phase, ms in mean_ms.items():
        phase_ns[:, :, PHASES.index(phase)] = ms * MS * noise.gamma(60, 1 / 60, (num_ranks, num_steps))
    phase_ns[::8, :, PHASES.index("input")] += 3 * MS
    phase_ns[:, 99::100, PHASES.index("checkpoint")] = 60 * MS
    busy_ns = phase_ns.sum(axis=2)
    phase_ns[:, :, PHASES.index("wait")] = busy_ns.max(axis=0) - busy_ns
    duration_ns = phase_ns.sum(axis=2)
    start_ns = np.concatenate([np.zeros((num_ranks, 1), np.int64), duration_ns.cumsum(axis=1)[:, :-1]], axis=1)
    return Series(
        ranks=list(range(num_ranks)),
        hosts=[f"n{rank // ranks_per_host + 1:02d}" for rank in range(num_ranks)],
        steps=np.arange(10, 10 + num_steps),
        duration_ns=duration_ns,
        phase_ns=phase_ns,
        start_ns=start_ns,
        tail_ns=np.zeros(num_ranks, dtype=np.int64),
        counters=[_counters(rank, int(start_ns.max() / 1e9) + 2) for rank in range(num_ranks)],
        spans=[
            NamedSpans(name=span_name, num_spans=4, num_ranks=min(num_ranks, 4), total_ns=22 * MS, longest_ns=7 * MS)
        ],
    )


def _counters(rank: int, seconds: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    times_s = np.arange(seconds, dtype=np.float64)
    wave = 1 + 0.1 * np.sin(times_s / 3 + rank)
    return {
        "cpu_ns_per_s": (times_s, 0.92e9 * wave),
        "worker_cpu_ns_per_s": (times_s, 1.9e9 * wave),
        "resident_bytes": (times_s, 8.1e8 + 4e6 * times_s),
        "read_bytes_per_s": (times_s, 5.5e7 * wave),
        "file_opens_per_s": (times_s, 480 * wave),
        "network_received_bytes_per_s": (times_s, 2.1e8 * wave),
        "gpu_busy_percent": (times_s, 55 * wave),
        "storage_write_bytes_per_s": (times_s, np.zeros(seconds)),
        "input_samples_running_per_s": (times_s, 9 * wave),
    }


def make_analysis(series: Series, *, script: str = "train.py") -> Analysis:
    shares_by_rank = series.phase_ns.sum(axis=1) / series.duration_ns.sum(axis=1)[:, None]
    mean = dict(zip(PHASES, shares_by_rank.mean(axis=0).tolist(), strict=True))
    step_ns = series.duration_ns.max(axis=0)
    num_ranks, num_steps = series.duration_ns.shape
    window = Window(
        first_step=int(series.steps[0]),
        last_step=int(series.steps[-1]),
        num_steps=num_steps,
        num_warmup_steps=10,
        elapsed_ns=int(series.duration_ns[0].sum()),
    )
    ranks = tuple(
        RankTime(
            rank=rank,
            host=series.hosts[rank],
            shares=dict(zip(PHASES, shares_by_rank[rank].tolist(), strict=True)),
            busy_step_ns=float(step_ns.mean() * (1 - shares_by_rank[rank][4] - shares_by_rank[rank][5])),
        )
        for rank in range(num_ranks)
    )
    measures = Measures(
        window=window,
        step=StepTime(
            mean_ns=float(step_ns.mean()),
            median_ns=float(np.median(step_ns)),
            p05_ns=float(np.percentile(step_ns, 5)),
            p95_ns=float(np.percentile(step_ns, 95)),
            samples_per_s=num_ranks * 32e9 / float(step_ns.mean()),
        ),
        shares=mean,
        ranks=ranks,
        pop=_pop(mean),
        input=Input(wait_share=mean["input"], num_workers=2, batch_size=32, limit="iops"),
        communication=Communication(wait_share=mean["wait"], transfer_share=mean["transfer"], backend="gloo"),
        compute=Compute(
            flops_per_s=4.1e11, peak_flops_per_s=1.3e12, peak_origin="assumed", model_flops_utilisation=0.315
        ),
        environment=Environment(num_ranks=num_ranks, num_hosts=len(set(series.hosts)), torch_version="2.13.0"),
        waterfall=_waterfall(mean),
        not_measured=("Tensor-core share and memory-bound share: they need `--profile 20-29`.",),
    )
    return Analysis(
        run=f"2026-11-20-{script.rpartition('/')[2][:20]}-1",
        script=script,
        status="finished",
        exit_code=0,
        duration_s=41.3,
        verdict=_verdict(mean),
        findings=_findings(mean),
        measures=measures,
    )


def _pop(mean: dict[str, float]) -> Pop:
    balance, serialisation = 0.95, 0.98
    parallel = 1 - mean["wait"] - mean["transfer"]
    work = 1 - (mean["input"] + mean["checkpoint"]) / parallel
    return Pop(
        parallel_efficiency=parallel,
        load_balance=balance,
        communication_efficiency=parallel / balance,
        serialisation_efficiency=serialisation,
        transfer_efficiency=parallel / balance / serialisation,
        work_efficiency=work,
        overall_efficiency=parallel * work,
    )


def _waterfall(mean: dict[str, float]) -> tuple[WaterfallBar, ...]:
    bars, remaining = [], 1.0
    for phase in ("input", "checkpoint", "wait", "transfer", "other"):
        remaining -= mean[phase]
        bars.append(WaterfallBar(name=phase, share=mean[phase], remaining_share=remaining))
    return tuple(bars)


def _verdict(mean: dict[str, float]) -> Verdict:
    return Verdict(
        name="input-iops",
        share=mean["input"],
        runner_up="communication-bandwidth",
        runner_up_share=mean["transfer"],
        evidence=(
            "Of the loader’s busy time, 71 % goes into opening files and 9 % into reading them.",
            "480 files are opened a second per rank, 112 KiB each on average.",
            "2 workers a rank; none was idle in more than 3 % of the samples.",
        ),
        ranks=(0,),
        hosts=("n01",),
        phase="input",
    )


def _findings(mean: dict[str, float]) -> tuple[Finding, ...]:
    return (
        Finding(
            code="IN01",
            title="The input pipeline starves the ranks",
            because="43 % of each step is spent waiting for the next batch; above 10 % it is worth mending.",
            advise="Give the loader more workers: `DataLoader(..., num_workers=4, persistent_workers=True)`.",
            gain_at_most=mean["input"],
        ),
        Finding(
            code="IN02",
            title="Many small files are read",
            because="480 files a second are opened per rank, 112 KiB each: opening costs more than reading.",
            advise="Put many samples into one file, for example a tar or an array that is memory-mapped.",
            gain_at_most=mean["input"] * 0.7,
        ),
        Finding(
            code="BI02",
            title="Ranks are not bound to cores",
            because="Ranks of one host share all its cores and move between them.",
            advise="Remove `--no-bind`; each rank then owns its cores.",
            gain_at_most=None,
        ),
    )


def make_run(series: Series) -> dict[str, object]:
    """What the launcher writes into run.json."""
    return {
        "version": 1,
        "command": ["topout", "run", "-n", str(len(series.ranks)), "train.py", "--epochs", "3"],
        "started_at": "2026-11-20T14:05:00+01:00",
        "git_commit": "4f0c2d19a6",
        "versions": {"python": "3.12.4", "topout": "0.1.0", "torch": "2.13.0"},
        "hosts": [
            {"name": host, "num_cores": 32, "memory_bytes": 2**37, "gpus": [], "cpu_model": "EPYC 7313"}
            for host in dict.fromkeys(series.hosts)
        ],
        "ranks": [
            {
                "rank": rank,
                "host": host,
                "cores": [2 * rank, 2 * rank + 1],
                "num_threads": 2,
                "gpu": None,
                "exit_code": 0,
            }
            for rank, host in zip(series.ranks, series.hosts, strict=True)
        ],
        "spec": {"script": "train.py", "num_ranks": len(series.ranks), "bind": True, "steps": None},
        "origins": {"script": "command line", "num_ranks": "command line", "bind": "topout.toml:2", "steps": "default"},
        "notes": ["Counters of rank 1 began 0.4 s late."],
    }
