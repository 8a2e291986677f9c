"""Fixtures of the laboratory, for the tests in this room."""

from tests.lab.cluster import laboratory, nodes, slurm, slurm_of_the_session

__all__ = ["laboratory", "nodes", "slurm", "slurm_of_the_session"]
