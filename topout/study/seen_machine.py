"""The machine of a recorded run: its links, cores and storage, by the doctor where it was asked, else by the run."""

from collections.abc import Mapping
from typing import Any

from topout.host.file_systems import is_network
from topout.schema.measures import Measures
from topout.study.doctor_links import doctor_links


def seen_machine(measures: Measures, doctor: Mapping[str, Any] | None, notes: list[str]) -> dict[str, Any]:
    """Without the links that the doctor did not measure; the run itself may say them."""
    environment = measures.environment
    links = {} if doctor is None else doctor_links(doctor, notes)
    ranks_per_node = max(1, environment.num_ranks // max(1, environment.num_hosts))
    inside, between = links.get("within a host"), links.get("between hosts")
    if between is None and environment.num_hosts == 1:
        between = inside
    if inside is None and ranks_per_node == 1:
        inside = between
    if "between hosts" not in links and environment.num_hosts == 1:
        notes.append("No link between hosts was measured; that within a host stands for it. topout doctor, in an "
                     "allocation of two, measures one.")  # fmt: skip
    return (
        {
            "title": "where it was recorded",
            "nodes": max(1024, environment.num_hosts),
            "ranks_per_node": ranks_per_node,
            "cores": _cores(doctor or {}),
            "device": seen_device(measures),
        }
        | {name: link for name, link in (("inside", inside), ("between", between)) if link}
        | _storage(doctor or {}, notes)
    )


def seen_device(measures: Measures) -> str:
    """As torch calls it; `CPU` where torch told of itself and of no device; empty when nobody told."""
    told = measures.environment
    return told.device_name or ("CPU" if told.torch_version or told.processor else "")


def data_place(doctor: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Where the training data lies, if the doctor was told (`topout doctor --data`) and could read it."""
    places = [place for host in doctor.get("hosts", ()) for place in host.get("places", ())]
    return next((place for place in places if place.get("purpose") == "data" and place.get("read_bytes_per_s")), None)


def _cores(doctor: Mapping[str, Any]) -> int:
    """Of the host that has fewest; zero when nobody looked."""
    limits = [host.get("limits") or {} for host in doctor.get("hosts", ())]
    granted = [min(one["num_cores"], one.get("cpu_limit") or one["num_cores"]) for one in limits if "num_cores" in one]
    return int(max(1, min(granted))) if granted else 0


def _storage(doctor: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    place = data_place(doctor)
    if place is None:
        return {}
    rate = float(place["read_bytes_per_s"])
    if not is_network(place.get("file_system")):
        return {"local_storage": {"bytes_per_s": rate, "bytes": float(place.get("free_bytes") or 0)}}
    num_hosts = int(place.get("num_hosts") or 1)
    notes.append(f"Shared storage gave {rate / 1e9:.2f} GB/s to each of {num_hosts} hosts; what all servers give is "
                 f"not known and taken for that of {num_hosts}. Set system.shared_storage.bytes_per_s.")  # fmt: skip
    return {
        "shared_storage": {
            "bytes_per_s": num_hosts * rate,
            "client_bytes_per_s": rate,
            "opens_per_s": num_hosts * float(place.get("opens_per_s") or 0),
        }
    }
