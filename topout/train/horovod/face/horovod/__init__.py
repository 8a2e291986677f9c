"""What `import horovod` finds in a rank of `topout run` where no working Horovod is installed."""

import sys

from topout.train.horovod import process_sets, world

__version__ = "0.28.1"
# where scripts import these from; a folder of that name would say nothing
sys.modules["horovod.common.exceptions"] = world
sys.modules["horovod.common.process_sets"] = process_sets


def run(*_args: object, **_kwargs: object) -> None:
    """`horovod.run` starts jobs; that is the launcher's part here."""
    from topout.schema.errors import TopoutError

    raise TopoutError(
        "horovod.run is not served.",
        why="this process is already a rank of a job",
        do="start the script itself on all ranks: topout run -n N SCRIPT",
    )
