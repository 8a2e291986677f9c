"""What a user asks of `topout run`, with the origin of every value.

Values come from, later wins: the default, `topout.toml` beside the script or in the current folder (table `[run]`), the
command line. An unknown key is an error that names the file, the line and the nearest valid key.
"""

from __future__ import annotations

import os

from topout.schema.errors import TopoutError
from topout.schema.light_dataclass import dataclass, field, names_of, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Any

CONFIG_NAME = "topout.toml"
BIND_POLICIES = ("auto", "gpu", "socket", "numa", "core", "node", "none")
"""What a rank is bound to; `auto` is the GPU's domain, else whole cores shared out evenly."""
PER_NODE = ("gpu", "socket", "numa", "core", "node")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run."""

    script: str | None = None
    """Path of the script, or the module's name with `is_module`; None trains the embedded default."""
    args: tuple[str, ...] = ()
    is_module: bool = False
    num_ranks: int | None = None
    """None: one a GPU, else one a NUMA domain, on every host."""
    nodes: int | None = None
    """How many hosts of the allocation to use; None: all."""
    per_node: int | str | None = None
    """Ranks on each host, or what each host gets one rank for (`PER_NODE`)."""
    bind: str = "auto"
    """One of `BIND_POLICIES`."""
    bind_report: bool = False
    interface: str | None = None
    """Network interface over which hosts reach each other; None: chosen by route and speed."""
    start_timeout_s: float = 25.0
    """Seconds without a further host arriving after which a start counts as failed."""
    restarts: int = 0
    """How often the job is started again after a rank or a host failed."""
    min_nodes: int | None = None
    """Fewest hosts with which a restart goes on; None: all of them."""
    record: bool = True
    steps: int | None = None
    """End cleanly after so many optimizer steps."""
    data_share: float | None = None
    """Loaders yield this share of their batches."""
    batch: int | None = None
    """Samples in a batch of one rank, set in the loaders that feed training."""
    profile: tuple[int, int] | None = None
    """First and last step (inclusive) of a torch.profiler window."""
    filter: tuple[str, ...] = ()
    """Names of spans to leave out; shell patterns."""
    packs: tuple[str, ...] = ()
    """Packs that stand in for folders: `DIR` or `ROOT=PACK`, once checked all of the latter kind."""
    ddp: bool = False
    """Make a script for one device data-parallel."""
    onednn_backward: bool = True
    """Let oneDNN compute gradients on CPUs, as torch does; False: torch's own kernels."""
    keep_memory: bool = False
    """Ranks keep memory that was freed, instead of giving it back to the kernel."""
    runs: str = "topout-runs"
    origins: dict[str, str] = field(default_factory=dict)
    """Where each value came from: `default`, `topout.toml:3` or `--flag`."""


_FROM_FILE: dict[str, tuple[Any, ...]] = {
    "num_ranks": (int,), "nodes": (int,), "per_node": (int, str), "bind": (str, bool), "interface": (str,),
    "start_timeout_s": (int, float), "restarts": (int,), "min_nodes": (int,), "record": (bool,), "steps": (int,),
    "data_share": (str, float, int), "batch": (int,), "profile": (str, int), "filter": (list,), "packs": (list,),
    "ddp": (bool,), "onednn_backward": (bool,), "keep_memory": (bool,), "runs": (str,),
}  # fmt: skip
"""Keys of `[run]` in topout.toml, and of which types each may be."""


def parse_share(text: str | float) -> float:
    """`2%`, `0.02` and 0.02 are the same share."""
    try:
        share = float(text[:-1]) / 100 if isinstance(text, str) and text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise TopoutError(f"{text!r} is not a share.", why="a share is above 0 and at most 100 %", do="try 2% or 0.02")
    return share


def parse_batch(size: int) -> int:
    if size < 1:
        raise TopoutError(f"--batch {size} is not possible.", why="it must be at least 1", do="try --batch 64")
    return size


def parse_steps_range(text: str | int) -> tuple[int, int]:
    """`20-29` is ten steps; `20` is step 20 alone."""
    first, dash, last = str(text).partition("-")
    try:
        window = (int(first), int(last if dash else first))
    except ValueError:
        window = (-1, -1)
    if not 0 <= window[0] <= window[1]:
        raise TopoutError(
            f"{text!r} is not a range of steps.",
            why="it is FIRST-LAST, counted from 0, and LAST is not before FIRST",
            do="try --profile 20-29",
        )
    return window


def parse_bind(text: str) -> tuple[str, bool]:
    """`socket`, `report` or `socket,report`: what a rank is bound to, and whether the table is printed."""
    words = [word.strip() for word in text.split(",")]
    policies = [word for word in words if word != "report"]
    if len(policies) > 1 or any(policy not in BIND_POLICIES for policy in policies):
        raise _unknown_word("--bind", text, (*BIND_POLICIES, "report"))
    return policies[0] if policies else "auto", "report" in words


def parse_per_node(text: str | int) -> int | str:
    """A number of ranks, or what each host gets one rank for."""
    if text in PER_NODE:
        return text
    try:
        return int(text)
    except ValueError:
        raise _unknown_word("--per-node", str(text), PER_NODE) from None


def _unknown_word(flag: str, text: str, valid: Sequence[str]) -> TopoutError:
    from difflib import get_close_matches

    near = get_close_matches(text, valid, n=1)
    return TopoutError(
        f"{flag} {text} is not known.",
        why=f"it takes {', '.join(valid)}" + (" or a number" if flag == "--per-node" else ""),
        do=f"did you mean {flag} {near[0]}?" if near else f"try {flag} {valid[0]}",
    )


def resolve_spec(flags: dict[str, Any], config: Path | None) -> RunSpec:
    """The spec from flags that were given (None = not given) over the config file over the defaults."""
    values: dict[str, Any] = {}
    origins = {name: "default" for name in names_of(RunSpec) if name != "origins"}
    if config is not None:
        for key, (value, line) in _read_config(config).items():
            values[key] = value
            origins[key] = f"{config.name}:{line}"
    for key, value in flags.items():
        if value is not None:
            values[key] = value
            origins[key] = "command line"
    # two ways to say how many: what was typed is meant, the file's other one is for calls that say nothing
    for typed, other in (("num_ranks", "per_node"), ("per_node", "num_ranks")):
        if origins[typed] == "command line" != origins[other]:
            values.pop(other, None)
            origins[other] = "default"
    return replace(RunSpec(**values), origins=origins)


def find_config(script: str | None) -> Path | None:
    """`topout.toml` in the current folder, else beside the script."""
    # texts, since most have no such file, and `pathlib` takes longer to load than this to look
    beside = [os.path.dirname(os.path.realpath(script))] if script else []  # noqa: PTH120
    for place in (os.curdir, *beside):
        if os.path.isfile(f"{place}/{CONFIG_NAME}"):  # noqa: PTH113
            from pathlib import Path

            return Path(place).absolute() / CONFIG_NAME
    return None


def _read_config(path: Path) -> dict[str, tuple[Any, int]]:
    # only who has such a file waits for its reader
    from topout.schema.config_file import read_table

    # [site] is for `submit.site`
    found = read_table(path, "run", _FROM_FILE, other_tables=("site",))
    values = {key: (_READ.get(key, _as_it_is)(value), line) for key, (value, line) in found.items()}
    policy, line = found.get("bind", (None, 0))
    return values | ({"bind_report": (True, line)} if isinstance(policy, str) and parse_bind(policy)[1] else {})


def _as_it_is(value: Any) -> Any:
    return value


def _read_bind(value: str | bool) -> str:
    if isinstance(value, bool):
        return "auto" if value else "none"
    return parse_bind(value)[0]


_READ: dict[str, Callable[[Any], Any]] = {
    "data_share": parse_share,
    "batch": parse_batch,
    "profile": parse_steps_range,
    "per_node": parse_per_node,
    "bind": _read_bind,
    "start_timeout_s": float,
}
"""What a file's value becomes, where it is not kept as it is."""
