"""Bad habits and odd ends; the first argument chooses one."""

import os
import sys
import threading
import time


def no_torch():
    for number in range(3):
        open(__file__).close()
        print("line", number)
    sys.exit(5)


def never_steps():
    import torch

    print("sum", float(torch.ones(3).sum()))


def train(steps, model=None, pause_s=0.0):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    model = model or torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = DataLoader(TensorDataset(torch.randn(4 * steps, 8)), batch_size=4)
    done = 0
    for (x,) in batches:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        time.sleep(pause_s)
        done += 1
    print("steps", done, "of", len(batches))


def own_iterator():
    """Its loader hands out something that is not torch's, and takes no attributes."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Doubled(DataLoader):
        def _get_iterator(self):
            return (2 * batch[0] for batch in super()._get_iterator())

    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in Doubled(TensorDataset(torch.randn(48, 8)), batch_size=4):
        model(x).sum().backward()
        optimizer.step()
    print("LAST LINE")


def fifty_steps():
    train(50)


def slow_steps():
    train(60, pause_s=0.05)


def leftovers():
    """Leaves a process group, a thread and a worker behind."""
    import torch

    torch.distributed.init_process_group("gloo")
    train(5, torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2)))
    threading.Thread(target=time.sleep, args=(600,)).start()
    print("LAST LINE", time.time(), flush=True)


def thread_trains():
    """The last line is reached long before training is."""
    threading.Thread(target=train, args=(60, None, 0.1)).start()


def broken_flight_recorder():
    import torch

    torch.distributed.init_process_group("gloo")
    del torch._C._distributed_c10d._dump_fr_trace_json
    train(5, torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2)))


def own_marks():
    import topout

    for _ in range(6):
        with topout.span("input"):
            time.sleep(0.01)
        with topout.span("noise"):
            time.sleep(0.001)
        topout.count("tokens", 128)
        topout.step()


def fills_the_disk():
    """Somebody else fills the disk in the middle of the run."""
    with open(os.path.join(os.environ["TOPOUT_RUN"], "somebody-elses"), "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    slow_steps()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
