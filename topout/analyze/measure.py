"""All measures of a run, and its verdict.

Every part stands alone: what cannot be measured becomes a sentence in `not_measured`, and the rest is still told.
Only a folder that is none, or a recording of a newer topout, is an error.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from topout.analyze.accelerator import runs_ahead
from topout.analyze.batches import trained_on
from topout.analyze.collectives import find_blocked, has_communication, hides_waits, measure_communication
from topout.analyze.compute import measure_compute
from topout.analyze.device import measure_device
from topout.analyze.environment import describe_environment
from topout.analyze.evaluations import computes_unseen
from topout.analyze.input import measure_input
from topout.analyze.marks import measure_counts
from topout.analyze.memory import measure_memory, with_faults
from topout.analyze.noise_scale import measure_noise_scale
from topout.analyze.peers import measure_tensor_parallel
from topout.analyze.pipeline import measure_pipeline
from topout.analyze.pop import pop_efficiencies
from topout.analyze.serial import measure_serial
from topout.analyze.steps import Phases, has_steps, read_phases, read_tables
from topout.analyze.stragglers import WaitCauses, find_stragglers, wait_causes
from topout.analyze.unheard import (
    are_alone,
    blind_phases,
    hides_communication,
    is_compiled_whole,
    is_empty,
    named,
    why_unheard,
    without_recording,
)
from topout.analyze.verdict import decide
from topout.analyze.waterfall import waterfall
from topout.host.bindings_report import ranges
from topout.record.row_names import REPLACED, UNCHANGED
from topout.schema.counted import counted
from topout.schema.event import Kind
from topout.schema.measures import (
    PHASES,
    Communication,
    Compute,
    Input,
    Measures,
    Memory,
    RankTime,
    Serial,
    StepTime,
    TensorParallel,
    Verdict,
    Window,
)
from topout.schema.run_folder import RunFolder, open_run
from topout.trace.readers.kineto import Profile, read_profile
from topout.trace.table import RankTable
from topout.trace.told_steps import has_steps_by_backward

Part = TypeVar("Part")
_BY_BACKWARD = "Steps are told by backward(), since no torch.optim step was seen."
_UNTRAINED = {
    UNCHANGED: "Nothing was seen to be trained: gradients were computed, and what they belong to did not change.",
    REPLACED: (
        "Nothing was seen to be trained: what got gradients was made anew for each backward(), as inputs are, or "
        "weights that a script replaces."
    ),
}
_FRAMEWORKS = ("torch", "keras", "tf_keras", "tensorflow", "jax")


@dataclass
class _Missing:
    """Collects what could not be measured."""

    sentences: list[str] = field(default_factory=list)

    def say(self, sentence: str) -> None:
        if sentence not in self.sentences:
            self.sentences.append(sentence)

    def attempt(self, what: str, measure: Callable[[], Part], otherwise: Part) -> Part:
        try:
            return measure()
        except Exception as error:
            self.say(
                f"{what}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}."
            )
            return otherwise


def measure_run(folder: RunFolder) -> tuple[Measures, Verdict | None]:
    """Everything that the folder tells. No step, no verdict; `not_measured` then says what to do."""
    folder, run = open_run(folder.path)
    tables = read_tables(folder)
    missing = _Missing()
    _tell_recorders(tables, run, missing)
    failure = missing.attempt("The first failure", lambda: _first_failure(folder), None)
    measures = Measures(
        environment=describe_environment(tables, run),
        memory=missing.attempt("Memory", lambda: measure_memory(tables, run, failure), Memory()),
        noise_scale=missing.attempt("The noise scale", lambda: measure_noise_scale(tables), None),
    )
    phases = missing.attempt("Steps", lambda: _find_phases(folder, tables, run, missing), None)
    counts = missing.attempt("What the script counted", lambda: measure_counts(tables, phases), measures.counts)
    measures = replace(measures, counts=counts)
    waiting: WaitCauses | None = None
    blind: tuple[str, ...] = ()
    if phases is not None:
        blind = blind_phases(phases.tables, run)
        is_hidden = hides_communication(phases.tables, run)
        measures = _measure_steps(measures, phases, _read_profiles(folder, phases, missing), blind, missing)
        if is_hidden:
            _tell_hidden(phases, measures, missing)
            is_told_apart = measures.device is not None
            communication = replace(measures.communication, is_hidden=not is_told_apart)
            measures = replace(measures, pop=None, communication=communication)
        if not are_alone(phases.tables):
            waiting = missing.attempt("Why ranks waited", lambda: wait_causes(phases), None)
    verdict = missing.attempt("The verdict", lambda: decide(measures, waiting, blind), None)
    if phases is not None and verdict is not None and _is_told_by_backward(phases):
        told = (_BY_BACKWARD, *_untrained(phases))
        verdict = replace(verdict, evidence=(*verdict.evidence[:1], *told, *verdict.evidence[1:]))
    return replace(measures, not_measured=tuple(missing.sentences)), verdict


def _measure_steps(
    measures: Measures, phases: Phases, profiles: list[Profile], blind: tuple[str, ...], missing: _Missing
) -> Measures:
    per_rank = phases.phase_ns.sum(axis=1) / phases.elapsed_ns
    shares = dict(zip(PHASES, per_rank.mean(axis=0).tolist(), strict=True))
    return replace(
        measures,
        window=_window(phases),
        step=_step_time(phases),
        shares=shares,
        ranks=tuple(_rank_times(phases, per_rank.tolist())),
        pop=pop_efficiencies(phases.phase_ns, phases.elapsed_ns) if not blind else None,
        waterfall=waterfall(shares),
        device=missing.attempt("The devices", lambda: measure_device(profiles), None),
        input=missing.attempt("Input", lambda: measure_input(phases, shares), Input()),
        communication=missing.attempt(
            "Communication", lambda: _communication(phases, shares, blind, missing), Communication()
        ),
        pipeline=missing.attempt(
            "The pipeline", lambda: measure_pipeline(phases.tables, phases.phase_ns, phases.elapsed_ns), None
        ),
        tensor_parallel=missing.attempt(
            "Tensor-parallel peers", lambda: _tensor_parallel(phases, shares, missing), None
        ),
        stragglers=missing.attempt(
            "Stragglers", lambda: () if are_alone(phases.tables) else find_stragglers(phases), ()
        ),
        serial=missing.attempt("Serial phases", lambda: measure_serial(phases, shares), Serial()),
        compute=missing.attempt("Arithmetic", lambda: measure_compute(phases, profiles, shares), Compute()),
        memory=missing.attempt("Page faults", lambda: with_faults(measures.memory, phases), measures.memory),
    )


def _find_phases(
    folder: RunFolder, tables: list[RankTable], run: Mapping[str, Any], missing: _Missing
) -> Phases | None:
    """Ranks without a step are left out, and named."""
    stepped = [table for table in tables if has_steps(table)]
    for table in tables:
        if stepped and not has_steps(table) and not is_empty(table):
            missing.say(f"Rank {table.rank} completed no step; the other ranks are measured without it.")
    phases = read_phases(folder) if stepped else None
    if phases is None:
        missing.say(_why_no_steps(tables, run))
        return None
    if phases.starts_late:
        missing.say(
            f"Steps before {phases.steps[0]}: torch's flight recorder no longer held the arrivals at their "
            "collectives, so the window starts there (set TORCH_FR_BUFFER_SIZE higher to keep more)."
        )
    windows = [window for table in tables if isinstance(window := table.facts.get("profiled_steps"), list) and window]
    if any(window[-1] >= phases.steps[0] and window[0] <= phases.steps[-1] for window in windows):
        missing.say("Undisturbed steps: the profiler, which slows steps down, ran during those that were measured.")
    if any(is_compiled_whole(table) for table in phases.tables):
        missing.say(
            "Forward, backward and optimizer: Keras runs a step as one compiled function, communication included; all "
            "of it stands under backward, so efficiencies of several ranks are left out."
        )
    if unseen := [table for table in phases.tables if computes_unseen(table)]:
        is_updated = any(len(table.rows(Kind.OPTIMIZER)) for table in unseen)
        missing.say(
            f"{'Forward and backward' if is_updated else 'Forward, backward and optimizer'}: none was seen; what "
            "nothing else explains stands under forward."
        )
    if _is_told_by_backward(phases):
        missing.say(
            "The update of parameters: no torch.optim step was seen, so every backward() is taken for the end of a "
            "step, and the update counts as optimizer or forward. Two backward() a step count as two; topout.step() "
            "tells where a step ends."
        )
    if len(phases.steps) < 5:
        missing.say(f"Only {len(phases.steps)} steps were left to measure; run at least 10 for figures to rely on.")
    return phases


def _is_told_by_backward(phases: Phases) -> bool:
    return any(has_steps_by_backward(table) for table in phases.tables)


def _untrained(phases: Phases) -> list[str]:
    """A sentence where what gets gradients gives no sign of training."""
    seen = {table.facts.get("gradients_of") for table in phases.tables}
    return [_UNTRAINED[what] for what in seen if what in _UNTRAINED] if len(seen) == 1 else []


def _why_no_steps(tables: list[RankTable], run: Mapping[str, Any]) -> str:
    spec = run.get("spec")
    if isinstance(spec, dict) and spec.get("record") is False:
        return "Nothing was recorded, because the run was asked not to; leave out --no-record."
    if not tables:
        return "Nothing was recorded: no rank got as far as its script. The logs in the run folder say why."
    if any(map(has_steps, tables)):
        return "No step was completed by all ranks, so there is no time at which they can be compared."
    if run.get("status") == "failed":
        return "The script failed before its first step was complete; its log in the run folder says why."
    imported = [name for name in _FRAMEWORKS if any(table.facts.get(f"{name}_version") for table in tables)]
    if not imported:
        return "The script never imported torch, so there were no steps to see; call topout.step() at the end of each."
    if "torch" not in imported:
        return (
            "No step was seen, so there is nothing to divide the time by. Keras' fit and train_on_batch are seen; a "
            "loop around a function of its own (tf.function, jax.jit) must call topout.step() at the end of each step."
        )
    if num_spawned := sum(int(table.facts.get("num_spawned") or 0) for table in tables):
        return (
            f"The script starts {counted(num_spawned, 'rank')} itself (torch.multiprocessing.spawn), and only those "
            "that topout starts are recorded. Run it with -n and without that option, where it can take its rank from "
            "the environment, as under torchrun."
        )
    num_seen, num_of_main = (
        sum(len(rows(table, Kind.BACKWARD)) for table in tables)
        for rows in (RankTable.rows_of_any_thread, RankTable.rows)
    )
    if num_seen > num_of_main == 0:
        return (
            "No step of torch.optim was seen, and backward() ran in helper threads only, where it tells no steps: "
            "several at once may belong to one. So there is nothing to divide the time by; call topout.step() at the "
            "end of each step."
        )
    return (
        "No step of torch.optim was seen, nor enough backward() to tell steps by, so there is nothing to divide the "
        "time by. If the script trains in another way, call topout.step() at the end of each step."
    )


def _tell_recorders(tables: list[RankTable], run: Mapping[str, Any], missing: _Missing) -> None:
    unrecorded = without_recording(tables, run)
    if tables and unrecorded:
        missing.say(f"There is no recording of {named(unrecorded)}: the file is missing, empty or cannot be read.")
    for table in tables:
        if table.is_cut:
            missing.say(f"The recording of rank {table.rank} breaks off in mid-write; what came before is used.")
    said_by: dict[str, list[int]] = {}
    for table in tables:
        notes = table.facts.get("notes")
        for note in notes if isinstance(notes, list) else []:
            said_by.setdefault(str(note), []).append(table.rank)
    for note, ranks in said_by.items():
        # as the launcher puts it, so that it is told once
        missing.say(f"{'Rank' if len(ranks) == 1 else 'Ranks'} {ranges(ranks)}: {note}")


def _first_failure(folder: RunFolder) -> str | None:
    return folder.first_failure.read_text(errors="replace") if folder.first_failure.is_file() else None


def _read_profiles(folder: RunFolder, phases: Phases, missing: _Missing) -> list[Profile]:
    found = []
    for rank in (table.rank for table in phases.tables):
        place = folder.profile(rank)
        for path in (place, place.with_name(place.name + ".gz")):
            if path.is_file():
                what = f"The profile of rank {rank}, which is left out"
                found.append(missing.attempt(what, partial(read_profile, path), None))
    return [profile for profile in found if profile is not None]


def _window(phases: Phases) -> Window:
    return Window(
        first_step=int(phases.steps[0]),
        last_step=int(phases.steps[-1]),
        num_steps=len(phases.steps),
        num_warmup_steps=phases.num_warmup_steps,
        elapsed_ns=phases.elapsed_ns,
    )


def _step_time(phases: Phases) -> StepTime:
    """A step of the job ends with its slowest rank; what follows the last optimizer step is no part of a step."""
    ends_ns = phases.edges_ns[:, 1:].copy()
    ends_ns[:, -1] -= phases.tail_ns
    step_ns = np.diff(ends_ns.max(axis=0), prepend=phases.start_ns)
    trained = trained_on(phases)
    return StepTime(
        mean_ns=float(step_ns.mean()),
        median_ns=float(np.median(step_ns)),
        p05_ns=float(np.percentile(step_ns, 5)),
        p95_ns=float(np.percentile(step_ns, 95)),
        samples_per_s=trained.samples_per_s,
        batches_per_step=trained.batches_per_step,
        samples_per_step=trained.samples_per_step,
    )


def _tell_hidden(phases: Phases, measures: Measures, missing: _Missing) -> None:
    """Why there are no efficiencies where communication has no phase of its own."""
    if any(is_compiled_whole(table) for table in phases.tables):
        return  # said with the step that it is a part of
    if not any(runs_ahead(table) for table in phases.tables):
        missing.say(
            "Efficiencies: communication inside compiled functions, or by other means than torch's, is not seen; it "
            "stands under forward."
        )
    elif measures.device is None:
        missing.say(
            "Efficiencies: exposed communication on the devices is part of backward here; --profile tells it apart "
            "from the kernels."
        )
    else:
        missing.say(
            "Efficiencies by phase: exposed communication on the devices is part of backward here; those on the device "
            "come from the kernels of the profile, which tell it apart."
        )


def _rank_times(phases: Phases, shares: list[list[float]]) -> list[RankTime]:
    busy_ns = phases.busy_ns.mean(axis=1).tolist()
    return [
        RankTime(rank=table.rank, host=table.host, shares=dict(zip(PHASES, own, strict=True)), busy_step_ns=busy)
        for table, own, busy in zip(phases.tables, shares, busy_ns, strict=True)
    ]


def _communication(
    phases: Phases, shares: dict[str, float], blind: tuple[str, ...], missing: _Missing
) -> Communication:
    if "backward" in blind:
        missing.say(why_unheard(phases.tables))
    if "transfer" in blind:
        missing.say(
            "Waiting and transfer: not all ranks of the job are measured, and waiting for the others looks like "
            "transfer; so efficiencies are left out, and a verdict that would rest on it."
        )
    if blind or len(phases.tables) < 2:
        return Communication()
    if not has_communication(phases.tables):
        if any(is_compiled_whole(table) for table in phases.tables):
            return Communication()  # said with the step that it is a part of
        missing.say("Communication: no arrival at a collective was recorded, so waiting and transfer are not known.")
        return Communication()
    if phases.is_split_withheld:
        missing.say(
            "Waiting and transfer are given as transfer alone: the clocks of the hosts disagree by more than that."
        )
    if hides_waits(phases.tables):
        missing.say(
            "The rate of transfer: the script asks until collectives are over (is_completed, done), or calls them in "
            "helper threads; how long it stood there is not seen."
        )
    return measure_communication(
        phases.tables,
        (phases.start_ns, phases.start_ns + phases.elapsed_ns),
        len(phases.steps),
        shares,
        skew_ns=phases.skew_ns,
        is_split_withheld=phases.is_split_withheld,
    )


def _tensor_parallel(phases: Phases, shares: dict[str, float], missing: _Missing) -> TensorParallel | None:
    if any(runs_ahead(table) and len(table.rows_of_any_thread(Kind.PEERS)) for table in phases.tables):
        missing.say(
            "Waiting for tensor-parallel peers: on the devices it is part of forward and backward (--profile shows it)."
        )
    if not shares["tensor"]:
        return None
    blocked = [(own.tensor_wait, own.tensor_transfer) for own in find_blocked(phases.tables)]
    window_ns = (phases.start_ns, phases.start_ns + phases.elapsed_ns)
    return measure_tensor_parallel(
        phases.tables, blocked, window_ns, len(phases.steps), shares["tensor"], skew_ns=phases.skew_ns
    )
