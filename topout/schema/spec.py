"""What a user asks of `topout run`, with the origin of every value.

Values come from, later wins: the default, `topout.toml` beside the script or in the current folder (table `[run]`), the
command line. An unknown key is an error that names the file, the line and the nearest valid key.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from topout.schema.errors import TopoutError

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
    profile: tuple[int, int] | None = None
    """First and last step (inclusive) of a torch.profiler window."""
    filter: tuple[str, ...] = ()
    """Names of spans to leave out; shell patterns."""
    runs: str = "topout-runs"
    origins: dict[str, str] = field(default_factory=dict)
    """Where each value came from: `default`, `topout.toml:3` or `--flag`."""


_FROM_FILE = (
    "num_ranks", "nodes", "per_node", "bind", "interface", "start_timeout_s", "restarts", "min_nodes", "record",
    "steps", "data_share", "profile", "filter", "runs",
)  # fmt: skip


def parse_share(text: str | float) -> float:
    """`2%`, `0.02` and 0.02 are the same share."""
    try:
        share = float(text[:-1]) / 100 if isinstance(text, str) and text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise TopoutError(f"{text!r} is not a share.", why="a share is above 0 and at most 100 %", do="try 2% or 0.02")
    return share


def parse_steps_range(text: str | int) -> tuple[int, int]:
    """`20-29` is ten steps; `20` is step 20 alone."""
    first, dash, last = str(text).partition("-")
    try:
        window = (int(first), int(last if dash else first))
    except ValueError:
        window = (-1, -1)
    if not 0 <= window[0] <= window[1]:
        raise TopoutError(f"{text!r} is not a range of steps.", why="steps count from 0", do="try --profile 20-29")
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
    if isinstance(text, int) or text.lstrip("-").isdigit():
        return int(text)
    if text not in PER_NODE:
        raise _unknown_word("--per-node", text, PER_NODE)
    return text


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
    origins = {item.name: "default" for item in fields(RunSpec) if item.name != "origins"}
    if config is not None:
        for key, (value, line) in _read_config(config).items():
            values[key] = value
            origins[key] = f"{config.name}:{line}"
    for key, value in flags.items():
        if value is not None:
            values[key] = value
            origins[key] = "command line"
    return replace(RunSpec(**values), origins=origins)


def find_config(script: str | None) -> Path | None:
    """`topout.toml` in the current folder, else beside the script."""
    places = [Path.cwd(), *([Path(script).resolve().parent] if script else [])]
    return next((place / CONFIG_NAME for place in places if (place / CONFIG_NAME).is_file()), None)


def _read_config(path: Path) -> dict[str, tuple[Any, int]]:
    # only who has such a file waits for its reader
    import tomllib

    try:
        text = path.read_text()
        table = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TopoutError(f"{path} cannot be read.", why=str(error), do="mend the line it names") from error
    # [site] is for `submit.site`
    unknown_tables = [name for name in table if name not in ("run", "site")]
    if unknown_tables:
        raise _unknown(path, text, unknown_tables[0], ["run", "site"], "table")
    if not isinstance(table.get("run", {}), dict):
        raise TopoutError(f"{path}: run is not a table.", why="settings stand under [run]", do="write [run] on a line")
    found = {}
    for key, value in table.get("run", {}).items():
        if key not in _FROM_FILE:
            raise _unknown(path, text, key, list(_FROM_FILE), "key")
        found[key] = (_checked(path, key, value), _line_of(text, key))
    return found


_TYPES: dict[str, type] = {
    "num_ranks": int, "nodes": int, "steps": int, "record": bool, "runs": str, "interface": str, "restarts": int,
    "min_nodes": int, "bind": str,
}  # fmt: skip


def _checked(path: Path, key: str, value: Any) -> Any:
    if key == "data_share":
        return parse_share(value)
    if key == "profile":
        return parse_steps_range(value)
    if key == "per_node" and type(value) in (int, str):
        return parse_per_node(value)
    if key == "start_timeout_s" and type(value) in (int, float):
        return float(value)
    if key == "bind" and type(value) is str:
        return parse_bind(value)[0]
    if key == "bind" and type(value) is bool:
        return "auto" if value else "none"
    if key == "filter" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    expected = _TYPES.get(key, list)
    if type(value) is not expected:
        raise TopoutError(
            f"{path}: {key} = {value!r} is not of the right type.",
            why=f"{key} takes a {expected.__name__}, not a {type(value).__name__}",
            do=f"mend {key} in {path.name}",
        )
    return value


def _line_of(text: str, key: str) -> int:
    for number, line in enumerate(text.splitlines(), 1):
        if line.replace("[", "").split("=")[0].strip(" ]\"'") == key:
            return number
    return 1


def _unknown(path: Path, text: str, key: str, valid: list[str], what: str) -> TopoutError:
    from difflib import get_close_matches

    near = get_close_matches(key, valid, n=1)
    return TopoutError(
        f"{path}:{_line_of(text, key)}: unknown {what} {key!r}.",
        why=f"valid are {', '.join(valid)}",
        do=f"did you mean {near[0]!r}?" if near else f"remove {key!r}",
    )
