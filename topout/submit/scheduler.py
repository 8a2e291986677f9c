"""Which scheduler this site has: the one its settings name, else the one whose command is on the PATH.

Not which scheduler this process runs under; `launch.detect` reads that from the environment of a job.
"""

import shutil
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import ModuleType

from topout.schema.errors import ExitCode, TopoutError
from topout.schema.plugin import load_plugin, outside_plugins, plugin_names
from topout.submit.site import Site

_PACKAGE = "topout.launch.schedulers"
_COMMANDS = {"slurm": "sbatch", "lsf": "bsub", "pbs": "qsub", "sge": "qsub", "flux": "flux"}
_WRAPPED_BY_SLURM = frozenset({"pbs", "lsf"})
"""Slurm brings commands of these names, for people who come from there."""

Which = Callable[[str], str | None]


def choose_scheduler(
    site: Site, environ: Mapping[str, str], which: Which = shutil.which, *, verb: str = "submit"
) -> tuple[str, str]:
    """(name of the plug-in, why this one); `verb` is what was typed, for what an error says to do."""
    is_submit = verb == "submit"
    if site.scheduler:
        return site.scheduler, site.origins["scheduler"]
    found = _installed(environ, which)
    if "slurm" in found:
        found = [name for name in found if name not in _WRAPPED_BY_SLURM]
    if len(found) == 1:
        return found[0], f"{_COMMANDS[found[0]]} is on the PATH"
    if not found:
        raise TopoutError(
            "There is no scheduler to submit to.",
            why=f"none of {', '.join(sorted(set(_COMMANDS.values())))} is on the PATH",
            do="log in to the cluster's login node, or run it here: "
            + ("topout run" if is_submit else f"topout {verb} without --submit"),
            exit_code=ExitCode.ENVIRONMENT,
        )
    raise TopoutError(
        "It is not clear which scheduler to submit to.",
        why=f"the commands of {', '.join(found)} are on the PATH",
        do=f'topout submit --scheduler {found[0]}   or scheduler = "{found[0]}" under [site] in site.toml'
        if is_submit
        else f'write scheduler = "{found[0]}" under [site] in topout.toml or site.toml, then topout {verb} again',
    )


def load_scheduler(name: str) -> ModuleType:
    if name not in plugin_names(_PACKAGE):
        outside = {point.name for point in outside_plugins(_PACKAGE)}
        known = [*_COMMANDS, *sorted(outside - set(_COMMANDS))]
        near = get_close_matches(name, known, n=1)
        raise TopoutError(
            f"There is no scheduler {name}.",
            why=f"jobs can be submitted to {', '.join(known)}",
            do=f"did you mean {near[0]}?" if near else "choose one of them",
        )
    module = load_plugin(_PACKAGE, name)
    if not hasattr(module, "submit_command"):
        raise TopoutError(
            f"Nothing can be submitted to {name}.",
            why="it starts ranks but has no queue",
            do=f"choose one of {', '.join(_COMMANDS)}",
        )
    return module


def _installed(environ: Mapping[str, str], which: Which) -> list[str]:
    found = [name for name in ("slurm", "lsf", "flux") if which(_COMMANDS[name])]
    if which("qsub"):
        is_sge = bool(which("qconf") or environ.get("SGE_ROOT"))
        is_pbs = bool(which("pbsnodes") or environ.get("PBS_CONF_FILE"))
        found += ["sge"] * is_sge + ["pbs"] * (is_pbs or not is_sge)
    return found
