"""The laboratory, for the tests that submit to a real Slurm."""

from tests.lab.cluster import laboratory, nodes, slurm, slurm_of_the_session

__all__ = ["laboratory", "nodes", "slurm", "slurm_of_the_session"]
