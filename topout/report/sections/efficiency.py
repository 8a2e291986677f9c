"""The tree of efficiencies after POP, and the device's own when kernels were seen."""

from topout.report import figures, svg
from topout.report.sections.frame import obtained, section
from topout.schema.measures import Device, Measures, Pop

Row = tuple[int, str, float | None, str]
"""depth in the tree, name, value, one line of explanation"""


def efficiency(measures: Measures) -> str:
    parts = []
    if measures.pop is not None:
        parts.append(_tree(_host_rows(measures.pop)))
    if measures.device is not None:
        parts.append("<h3>On the device</h3>" + _tree(_device_rows(measures.device)))
    if not parts:
        return ""
    note = (
        "Each factor is the product of those indented under it. 1 is perfect; below 0.80, marked, it deserves a look. "
        f"{obtained('measured')}"
    )
    return section("efficiency", "Efficiency", note, "".join(parts))


def _host_rows(pop: Pop) -> list[Row]:
    return [
        (0, "Overall efficiency", pop.overall_efficiency, "Share of all ranks’ time that trains the model."),
        (
            1,
            "Parallel efficiency",
            pop.parallel_efficiency,
            "Share of time outside communication: what more ranks cost.",
        ),
        (2, "Load balance", pop.load_balance, "Mean work of a rank against the most loaded one."),
        (
            2,
            "Communication efficiency",
            pop.communication_efficiency,
            "What the most loaded rank keeps beside communication.",
        ),
        (3, "Serialisation", pop.serialisation_efficiency, "Loss to ranks that wait for each other in turn."),
        (3, "Transfer", pop.transfer_efficiency, "Loss to moving bytes, latency included."),
        (1, "Work efficiency", pop.work_efficiency, "Of the time outside communication, the part that trains."),
    ]


def _device_rows(device: Device) -> list[Row]:
    return [
        (
            0,
            "Device parallel efficiency",
            device.parallel_efficiency,
            "Share of the devices’ time spent in computing kernels.",
        ),
        (1, "Load balance", device.load_balance, "Mean kernel time of a device against the busiest one."),
        (1, "Communication", device.communication_efficiency, "What is left beside collectives that nothing hides."),
        (1, "Orchestration", device.orchestration_efficiency, "What is left beside a device that has nothing queued."),
    ]


def _tree(rows: list[Row]) -> str:
    parts, depth = [], 0
    for row in rows:
        parts += ['<div class="factors">'] * (row[0] - depth) + ["</div>"] * (depth - row[0])
        depth = row[0]
        parts.append(_node(row))
    return f'<div class="tree">{"".join(parts)}{"</div>" * depth}</div>'


def _node(row: Row) -> str:
    _, name, value, meaning = row
    if value is None:
        state, bar = "unknown", svg.bar([], height=8)
    else:
        state = "low" if figures.is_low(value) else "good"
        bar = svg.bar([(state, 0.0, min(value, 1.0)), ("mark", figures.ACCEPTABLE_EFFICIENCY, 0.003)], height=8)
    flag = '<span class="flag">below 0.80</span>' if state == "low" else ""
    return (
        f'<div class="node {state}"><span class="name">{name}{flag}</span>{bar}'
        f'<b>{figures.factor(value)}</b><span class="meaning">{meaning}</span></div>'
    )
