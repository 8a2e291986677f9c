"""Which scheduler a site has is found by its commands, and asked for where they leave a doubt."""

from importlib.metadata import EntryPoint

import pytest

from topout.schema.errors import TopoutError
from topout.submit import scheduler
from topout.submit.scheduler import choose_scheduler, load_scheduler
from topout.submit.site import Site


def chosen(*commands, **environ):
    return choose_scheduler(Site(), environ, which=lambda name: f"/bin/{name}" if name in commands else None)[0]


@pytest.mark.parametrize(
    ("commands", "name"),
    [
        (["sbatch"], "slurm"),
        (["bsub"], "lsf"),
        (["flux"], "flux"),
        (["qsub", "qstat"], "pbs"),
        (["qsub", "pbsnodes"], "pbs"),
        (["qsub", "qconf"], "sge"),
        # commands that Slurm brings along for people who come from there
        (["sbatch", "qsub", "pbsnodes"], "slurm"),
        (["sbatch", "bsub"], "slurm"),
    ],
)
def test_a_scheduler_is_found_by_its_commands(commands, name):
    assert chosen(*commands) == name


def test_grid_engine_is_told_from_pbs_by_its_variable():
    assert chosen("qsub", SGE_ROOT="/opt/sge") == "sge"


@pytest.mark.parametrize("commands", [["sbatch", "qsub", "qconf"], ["sbatch", "flux"], ["bsub", "qsub"]])
def test_two_schedulers_are_a_question(commands):
    with pytest.raises(TopoutError) as caught:
        chosen(*commands)
    assert caught.value.problem == "It is not clear which scheduler to submit to."
    assert "--scheduler" in caught.value.do


def test_no_scheduler_is_an_environment_that_is_not_fit():
    with pytest.raises(TopoutError) as caught:
        chosen()
    assert caught.value.exit_code == 3


def test_what_the_site_says_is_not_questioned():
    site = Site(scheduler="lsf", origins={"scheduler": "site.toml:2"})
    assert choose_scheduler(site, {}, which=lambda name: None) == ("lsf", "site.toml:2")


def test_an_unknown_scheduler_is_answered_with_the_nearest():
    with pytest.raises(TopoutError, match="There is no scheduler slurn") as caught:
        load_scheduler("slurn")
    assert caught.value.do == "did you mean slurm?"


def test_only_what_takes_jobs_is_offered(monkeypatch):
    point = EntryPoint(name="condor", value="condor", group="topout.launch.schedulers")
    monkeypatch.setattr(scheduler, "outside_plugins", lambda package: (point,))
    with pytest.raises(TopoutError) as caught:
        load_scheduler("foo")
    assert caught.value.why == "jobs can be submitted to slurm, lsf, pbs, sge, flux, condor"


def test_what_has_no_queue_takes_no_jobs():
    with pytest.raises(TopoutError, match="Nothing can be submitted to local"):
        load_scheduler("local")
