"""What an optimizer refuses, in three parts. Not for what torch itself refuses well."""

import math
from typing import Any

from topout.schema.errors import ExitCode, TopoutError


def check_number(
    optimizer: str, name: str, value: Any, *, least: float, below: float = math.inf, above: bool = False
) -> None:
    """From `least` (or above it) and under `below`."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not (number > least if above else number >= least) or not number < below:
        limit = f" and below {below:g}" if below < math.inf else " and finite"
        raise TopoutError(
            f"{optimizer} has no {name}={value!r}.",
            why=f"{name} is a number {'above' if above else 'from'} {least:g}{' on' if not above else ''}{limit}.",
            do=f"mend {name}",
        )


def check_choice(optimizer: str, name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise TopoutError(
            f"{optimizer} has no {name}={value!r}.",
            why="Each option takes only what it can do.",
            do=f"{name}: one of {', '.join(map(repr, allowed))}",
        )


def check_kind(optimizer: str, name: str, tensor: Any) -> None:
    """Sparse, complex and whole-number tensors have no norm and update that would be right here."""
    if tensor.is_sparse or not tensor.is_floating_point():
        kind = "sparse" if tensor.is_sparse else str(tensor.dtype).removeprefix("torch.")
        raise TopoutError(
            f"{optimizer} cannot take {name}: it is {kind}.",
            why="The ratio of norms is defined for dense tensors of real numbers.",
            do="train it with another optimizer (SGD, SparseAdam), or make it dense: nn.Embedding(sparse=False)",
        )


def not_finite(optimizer: str, name: str, squares: tuple[float, float], *, steps_late: int = 0) -> TopoutError:
    """`squares` are of the weights, and of the gradient or LAMB's direction."""
    wrong = "weights" if not math.isfinite(squares[0]) else "gradient"
    when = f" (found up to {steps_late} steps later, so that the device need not wait)" if steps_late else ""
    return TopoutError(
        f"{optimizer}: the norm of the {wrong} of {name} is not finite{when}.",
        why="Its weights are lost from then on; the others have gone on with theirs."
        if steps_late
        else "It was left as it is; tensors before it in this step have been updated.",
        do="go on from a checkpoint before it with a lower rate, a longer warm-up or clipped gradients; "
        "with fp16 use torch.amp.GradScaler, which skips such steps",
        exit_code=ExitCode.JOB_FAILED,
    )
