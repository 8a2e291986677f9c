"""Memory, /dev/shm, ulimits, processor time: what ends or slows a training long after it started well.

Thresholds are where others were bitten, not what any one job needs.
"""

import ipaddress
from collections.abc import Callable, Sequence

from topout.host.openmp_traps import traps_set
from topout.preflight.amounts import count, percent, size
from topout.preflight.check import Check, Reading, Verdict, over_hosts
from topout.preflight.facts import Facts, Limits
from topout.schema.counted import counted

GROUP = "Limits and settings"
GIB = 2**30
DOCKER_SHM_BYTES = 64 << 20
_ENOUGH_SHM_BYTES = GIB
_ENOUGH_MEMORY_BYTES = 2 * GIB
_ENOUGH_FILES = 4096
_TOO_FEW_FILES = 256
_ENOUGH_PROCESSES = 1024
_BUSY_LOAD = 0.5
_STOLEN_SHARE = 0.02


def judge_limits(hosts: Sequence[Facts]) -> list[Check]:
    several = len(hosts) > 1
    table: list[tuple[str, str, Callable[[Limits], Reading | None]]] = [
        ("memory", "at least 2 GiB, and most of it free", _memory),
        ("/dev/shm", "at least 1 GiB; loader workers hand batches over in it", _shm),
        ("open files", "at least 4,096", _files),
        ("processes", "at least 1,024", _processes),
        ("locked memory", "unlimited where there is InfiniBand", _locked),
        ("stack", "at least 8 MiB", _stack),
        ("processor time", "all of the granted cores", _cpu_limit),
        ("other load", "the cores are idle before a job", _load),
        ("stolen time", "below 2 %", _steal),
        ("clock governor", "performance", _governor),
        ("huge pages", "madvise or always", _huge_pages),
        ("swap", "not in use", _swap),
        ("OpenMP binding", "not set by hand", _traps),
        ("own name", _name_expectation(several), lambda limits: _name(limits, several=several)),
    ]
    checks = [over_hosts(hosts, GROUP, name, expectation, _of(read)) for name, expectation, read in table]
    return [check for check in checks if check is not None]


def _of(read: Callable[[Limits], Reading | None]) -> Callable[[Facts], Reading | None]:
    return lambda facts: read(facts.limits) if facts.limits else None


def _memory(limits: Limits) -> Reading:
    is_limited = limits.memory_bytes < limits.machine_memory_bytes
    of = f" of {size(limits.machine_memory_bytes)} (control group)" if is_limited else ""
    free = "" if limits.available_bytes is None else f", {size(limits.available_bytes)} available"
    text = f"{size(limits.memory_bytes)}{of}{free}"
    if limits.memory_bytes < _ENOUGH_MEMORY_BYTES:
        return Reading(
            text=text,
            verdict=Verdict.WARNING,
            number=limits.memory_bytes,
            fix="ask the scheduler for more memory (--mem)",
        )
    if limits.available_bytes is not None and limits.available_bytes < 0.3 * limits.machine_memory_bytes:
        return Reading(
            text=text,
            verdict=Verdict.WARNING,
            number=limits.memory_bytes,
            fix="something else fills the memory of this host",
        )
    return Reading(text=text, number=limits.memory_bytes)


def _shm(limits: Limits) -> Reading:
    if limits.shm_bytes is None:
        return Reading(
            text="none", verdict=Verdict.UNFIT, fix="mount a tmpfs at /dev/shm; containers: --shm-size 8g or --ipc host"
        )
    text, number = f"{size(limits.shm_bytes)}, {size(limits.shm_free_bytes or 0)} free", float(limits.shm_bytes)
    fix = "docker run --shm-size 8g (or --ipc host); until then num_workers=0, or loader workers die with a bus error"
    if limits.shm_bytes <= DOCKER_SHM_BYTES:
        return Reading(text=text, verdict=Verdict.UNFIT, number=number, fix=fix)
    if (limits.shm_free_bytes or 0) < min(_ENOUGH_SHM_BYTES, limits.machine_memory_bytes / 4):
        return Reading(
            text=text, verdict=Verdict.WARNING, number=number, fix=f"remove what is left in /dev/shm, or {fix}"
        )
    return Reading(text=text, number=number)


def _files(limits: Limits) -> Reading:
    if limits.open_files is None:
        return Reading(text="unlimited")
    hard = "unlimited" if limits.open_files_hard is None else count(limits.open_files_hard)
    text, number = f"{count(limits.open_files)} (at most {hard})", float(limits.open_files)
    fix = f"ulimit -n {limits.open_files_hard or 65536} before the job; loaders share tensors by open files"
    if limits.open_files < _TOO_FEW_FILES:
        return Reading(text=text, verdict=Verdict.UNFIT, number=number, fix=fix)
    verdict = Verdict.WARNING if limits.open_files < _ENOUGH_FILES else Verdict.FINE
    return Reading(text=text, verdict=verdict, number=number, fix=fix)


def _processes(limits: Limits) -> Reading:
    if limits.processes is None:
        return Reading(text="unlimited")
    verdict = Verdict.WARNING if limits.processes < _ENOUGH_PROCESSES else Verdict.FINE
    fix = "ulimit -u 4096: threads count too, and each rank starts one for every core and loader worker"
    return Reading(text=count(limits.processes), verdict=verdict, number=limits.processes, fix=fix)


def _locked(limits: Limits) -> Reading:
    if limits.locked_bytes is None:
        return Reading(text="unlimited")
    text = f"{size(limits.locked_bytes)}{'' if limits.infiniband else ', no InfiniBand'}"
    if not limits.infiniband:
        return Reading(text=text, number=limits.locked_bytes)
    fix = "ulimit -l unlimited (limits.conf, or the scheduler's daemon): RDMA needs to lock its buffers"
    return Reading(text=text, verdict=Verdict.UNFIT, number=limits.locked_bytes, fix=fix)


def _stack(limits: Limits) -> Reading:
    if limits.stack_bytes is None:
        return Reading(text="unlimited")
    verdict = Verdict.WARNING if limits.stack_bytes < 8 << 20 else Verdict.FINE
    return Reading(text=size(limits.stack_bytes), verdict=verdict, number=limits.stack_bytes, fix="ulimit -s 8192")


def _cpu_limit(limits: Limits) -> Reading:
    if limits.cpu_limit is None or limits.cpu_limit >= limits.num_cores:
        return Reading(text=f"{counted(limits.num_cores, 'core')}, no quota", number=limits.num_cores)
    text = f"{limits.cpu_limit:g} cores' worth on {counted(limits.num_cores, 'core')} (control group)"
    fix = (
        f"threads beyond {max(int(limits.cpu_limit), 1)} are throttled in turns: ask for whole cores, or fewer threads"
    )
    return Reading(text=text, verdict=Verdict.WARNING, number=limits.cpu_limit, fix=fix)


def _load(limits: Limits) -> Reading | None:
    if limits.load_per_core is None:
        return None
    verdict = Verdict.WARNING if limits.load_per_core > _BUSY_LOAD else Verdict.FINE
    fix = "other processes run here (top): measurements of this run suffer too; ask for the host alone (--exclusive)"
    return Reading(text=f"{limits.load_per_core:.2f} a core", verdict=verdict, number=limits.load_per_core, fix=fix)


def _steal(limits: Limits) -> Reading | None:
    if limits.steal_share is None:
        return None
    verdict = Verdict.WARNING if limits.steal_share > _STOLEN_SHARE else Verdict.FINE
    fix = "the hypervisor gives this machine's cores to others: a dedicated instance, or another host"
    return Reading(text=percent(limits.steal_share), verdict=verdict, number=limits.steal_share, fix=fix)


def _governor(limits: Limits) -> Reading | None:
    if limits.governor is None:
        return None
    verdict = Verdict.WARNING if limits.governor == "powersave" else Verdict.FINE
    fix = "cpupower frequency-set -g performance (root); with intel_pstate powersave also clocks up, later"
    return Reading(text=limits.governor, verdict=verdict, fix=fix)


def _huge_pages(limits: Limits) -> Reading | None:
    if limits.huge_pages is None:
        return None
    verdict = Verdict.WARNING if limits.huge_pages == "never" else Verdict.FINE
    fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (root): large tensors spend time in page tables"
    return Reading(text=limits.huge_pages, verdict=verdict, fix=fix)


def _swap(limits: Limits) -> Reading:
    if limits.swap_bytes == 0:
        return Reading(text="none", number=0.0)
    text = f"{size(limits.swap_used_bytes)} of {size(limits.swap_bytes)} used"
    verdict = Verdict.WARNING if limits.swap_used_bytes > GIB else Verdict.FINE
    return Reading(
        text=text, verdict=verdict, number=limits.swap_used_bytes, fix="memory was short here: see who swaps"
    )


def _traps(limits: Limits) -> Reading:
    found = traps_set(limits.traps)
    if not found:
        return Reading(text="not set")
    text = " ".join(f"{name}={value}" for name, value in found.items())
    fix = "unset it: OpenMP narrows the rank to one core, and loader workers inherit that; topout binds ranks itself"
    return Reading(text=text, verdict=Verdict.WARNING, fix=fix)


def _name_expectation(several: bool) -> str:
    return "an address that other hosts reach" if several else "resolves"


def _name(limits: Limits, *, several: bool) -> Reading:
    if limits.name_address is None:
        fix = "the host's name does not resolve: an entry in /etc/hosts; libraries that look it up fail or wait"
        return Reading(text="does not resolve", verdict=Verdict.WARNING, fix=fix)
    is_loopback = ipaddress.ip_address(limits.name_address).is_loopback
    text = f"{limits.name_address}{' (loopback)' if is_loopback else ''}"
    fix = "libraries that look the name up offer an address nobody else reaches: set --interface, or mend /etc/hosts"
    return Reading(text=text, verdict=Verdict.WARNING if is_loopback and several else Verdict.FINE, fix=fix)
