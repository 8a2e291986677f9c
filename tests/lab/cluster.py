"""The laboratory as pytest fixtures: two nodes, a Slurm over them, the same ones for the whole session.

`nodes` and `slurm` are what a test asks for: they mend what the test broke, end what it left running, and hand the
same laboratory to the next test. Not for tests that need other nodes (three, sharing cores, a slower link): those
open their own `Nodes` and `Slurm`, which takes a tenth of a second. Tests that use them are marked `lab`.
A folder that test and nodes both see: tmp_path, for all nodes share the machine's files.
"""

from collections.abc import Iterator

import pytest

from tests.lab.nodes import Node, Nodes
from tests.lab.slurm import Slurm

__all__ = ["Node", "Nodes", "Slurm", "laboratory", "nodes", "slurm", "slurm_of_the_session"]


@pytest.fixture(scope="session")
def laboratory() -> Iterator[Nodes]:
    """Two nodes for the session; ask for `nodes` instead unless your fixture lives longer than a test."""
    with Nodes() as nodes:
        yield nodes


@pytest.fixture(scope="session")
def slurm_of_the_session(laboratory: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm for the session; ask for `slurm` instead unless your fixture lives longer than a test."""
    with Slurm(laboratory, tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.fixture
def nodes(laboratory: Nodes) -> Iterator[Nodes]:
    """n1 and n2, a core each, and a link of 1 Gbit/s between them."""
    yield laboratory
    laboratory.mend()


@pytest.fixture
def slurm(nodes: Nodes, slurm_of_the_session: Slurm) -> Iterator[Slurm]:
    """A Slurm over `nodes`, all nodes idle."""
    yield slurm_of_the_session
    slurm_of_the_session.mend()
