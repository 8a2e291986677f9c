"""`hvd.join`: a rank without more data goes on adding zeros to the others' gradients until all have come here.

Only gradients of a `DistributedOptimizer` go on; other collectives of ranks that still train would wait for ever, so a
script must not call any between its first `join` and its last.
"""

from topout.schema.errors import TopoutError
from topout.train.horovod import world
from topout.train.horovod.compressed_gradients import CompressedGradients
from topout.train.horovod.optimizer import engines
from topout.train.horovod.process_sets import global_process_set, group_of

_JUST_JOINED, _JOINED_BEFORE = 1, 2


def join(device: int = -1) -> int:
    """The rank that came last; where several came at the same step, the highest of them."""
    from topout.train.fusion.agreement import gather_numbers

    found = list(engines)
    if len(found) > 1:
        raise TopoutError(
            "hvd.join is not served with several optimizers.",
            why=f"{len(found)} are alive, and a rank that has joined cannot know whose step is next",
            do="make the ranks' numbers of batches equal (DistributedSampler does)",
        )
    if not found or world.size() == 1:
        gather_numbers([0], group_of(global_process_set))
        return world.size() - 1
    if isinstance(found[0], CompressedGradients):
        raise TopoutError(
            "hvd.join is not served with a compression of the script's own.",
            why="a rank that has joined cannot know what the compression would make of its zeros",
            do="hvd.Compression.fp16 or none, or make the ranks' numbers of batches equal (DistributedSampler does)",
        )
    mark = _JUST_JOINED
    while True:
        marks = found[0].shadow_step(mark)
        if all(marks):
            return max(number for number, other in enumerate(marks) if other == min(marks))
        mark = _JOINED_BEFORE
