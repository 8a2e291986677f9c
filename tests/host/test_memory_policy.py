"""A rank's memory comes from the domains of its cores, and what it starts inherits that."""

import subprocess
import sys
from pathlib import Path

import pytest

from topout.host import memory_policy
from topout.host.memory_policy import bind_memory


def policy_of_child(numa: list[int]) -> str:
    """As the kernel shows it for a child that was bound between fork and exec."""
    done = subprocess.run(
        [sys.executable, "-c", "print(open('/proc/self/numa_maps').readline().split(' file=')[0])"],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: bind_memory(numa),
    )
    return done.stdout.strip().partition(" ")[2]


@pytest.fixture
def domain() -> int:
    """One that has memory and that this process may use."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Mems_allowed_list:")[2].split()[0].replace("-", ",").split(",")[0])


def test_a_child_started_in_between_prefers_its_domain(domain):
    assert policy_of_child([]).startswith("default")
    assert policy_of_child([domain]) in (f"prefer (many):{domain}", f"prefer:{domain}")


def test_older_kernels_prefer_a_single_domain(domain, monkeypatch):
    monkeypatch.setattr(memory_policy, "MPOL_PREFERRED_MANY", 99)
    assert policy_of_child([domain]) == f"prefer:{domain}"
    assert policy_of_child([domain, domain + 1]).startswith("default")


def test_what_cannot_be_bound_is_left_as_it_is():
    assert not bind_memory([])
    assert not bind_memory([-1])
    assert not bind_memory([5000])
    assert not bind_memory([777])


def test_a_machine_whose_call_is_not_known_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory_policy, "_NUMBER", None)
    assert not bind_memory([0])
