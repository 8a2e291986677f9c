"""What the doctor asks of every host's probe, handed over as one word of the command line."""

import json
from dataclasses import asdict, dataclass

QUICK_LIMIT_S = 50.0
KERNELS_LIMIT_S = 240.0


@dataclass(frozen=True, kw_only=True)
class Orders:
    """One doctor run."""

    data: str | None = None
    """Folder or file with training data, whose file system is tried out."""
    kernels: bool = False
    """Sweep sizes of kernels and compare instruction sets."""
    pythons: tuple[str, ...] = ()
    """Further interpreters whose imports are timed."""
    talks: bool = False
    limit_s: float = QUICK_LIMIT_S
    """After which a probe writes what it has and leaves."""

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Orders":
        values = json.loads(text)
        return cls(**{**values, "pythons": tuple(values.get("pythons", ()))})
