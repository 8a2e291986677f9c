"""Whether a diagnosis holds what a calibration reads of it: looked at once, before anything is computed.

Written by this program or an older one, and perhaps edited; what a calibration does not read may be anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from topout.schema.errors import TopoutError

# no time, size or rate lies beyond; what a computation could not stand does
_Above = Annotated[float, msgspec.Meta(gt=1e-30, lt=1e30)]
_Amount = Annotated[float, msgspec.Meta(ge=0, lt=1e30)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]


@dataclass(frozen=True, kw_only=True)
class _Fitted:
    link_class: str
    operation: str
    num_ranks: _Count
    transport: str = ""
    alpha_s: _Amount
    beta_bytes_per_s: _Above | None = None
    beta_interval_bytes_per_s: tuple[_Amount, _Amount] | None = None
    largest_bytes_per_s: _Above
    worst_error_share: _Amount = 0.0
    cpu_alpha_s: _Amount | None = None
    cpu_s_per_byte: _Amount | None = None


@dataclass(frozen=True, kw_only=True)
class _Sample:
    num_bytes: _Above
    times_s: tuple[_Above, ...]


@dataclass(frozen=True, kw_only=True)
class _Sampled:
    samples: tuple[_Sample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Limits:
    num_cores: _Count = 1
    cpu_limit: _Above | None = None


@dataclass(frozen=True, kw_only=True)
class _Place:
    purpose: str = ""
    file_system: str | None = None
    read_bytes_per_s: _Amount | None = None
    opens_per_s: _Amount | None = None
    free_bytes: _Amount | None = None
    num_hosts: _Count | None = None


@dataclass(frozen=True, kw_only=True)
class _Host:
    links: tuple[_Sampled, ...] = ()
    limits: _Limits | None = None
    places: tuple[_Place, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Document:
    links: tuple[_Fitted, ...] = ()
    hosts: tuple[_Host, ...] = ()


def check_document(name: str, document: Mapping[str, Any]) -> None:
    """`name`: what the error calls it."""
    try:
        msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        raise TopoutError(
            f"{name} is no diagnosis of topout doctor.", why=f"{error}.", do="topout doctor --json > doctor.json"
        ) from error
