"""How the GPUs of each host are joined, and whether hwloc sees the host as the kernel does.

What is said to be there, not what it carries; see `links` for that.
"""

from collections.abc import Sequence

from topout.host.gpu_links import Way
from topout.host.gpu_links_report import links_in_words, links_warnings
from topout.preflight.check import Check, Reading, Verdict, over_hosts
from topout.preflight.facts import Facts
from topout.preflight.judges.links import always_has_nvlink
from topout.preflight.judges.sameness import GROUP


def judge_wiring(hosts: Sequence[Facts]) -> list[Check]:
    checks = [
        over_hosts(hosts, GROUP, "GPU links", "every GPU reaches the others, each by as many links", _gpu_links),
        over_hosts(hosts, GROUP, "hwloc", "sees what the kernel says, for MPI libraries bind by it", _hwloc),
    ]
    return [check for check in checks if check is not None]


def _gpu_links(facts: Facts) -> Reading | None:
    if facts.gpu_links is None:
        return None
    text = links_in_words(facts.gpu_links)
    warnings = links_warnings(facts.gpu_links)
    if warnings:
        what = "; ".join(found.what for found in warnings)
        return Reading(text=f"{text}; {what}", verdict=Verdict.WARNING, fix=warnings[0].do)
    name = facts.framework.device_name if facts.framework else None
    pairs = facts.gpu_links.pairs
    if pairs and always_has_nvlink(name) and not any(pair.way is Way.NVLINK for pair in pairs):
        fix = "nvidia-smi nvlink -s, and systemctl status nvidia-fabricmanager: without it a switch joins nobody"
        return Reading(text=f"{text}, on boards that have NVLink", verdict=Verdict.WARNING, fix=fix)
    return Reading(text=text)


def _hwloc(facts: Facts) -> Reading | None:
    if facts.hwloc is None:
        return None
    if not facts.hwloc.differences:
        return Reading(text=f"the same: {facts.hwloc.words}")
    fix = "lstopo shows its view, HWLOC_XMLFILE may be another machine's; topout binds by the kernel's view"
    return Reading(text="; ".join(facts.hwloc.differences), verdict=Verdict.WARNING, fix=fix)
