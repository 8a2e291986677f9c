"""A script that is cut in the middle of an epoch says nothing about loaders whose workers went before their threads."""

import threading

import pytest

from topout.record.quiet_loaders import silence_loaders

TRAINS = """
import atexit, sys, threading, time, warnings
atexit.register(time.sleep, 1)  # after the workers' end, a thread of theirs has time to fail
warnings.simplefilter("ignore")
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data._utils import pin_memory
# as with a GPU, but for pages that are not pinned
torch.accelerator.is_available = lambda: True
torch.accelerator.current_accelerator = lambda: torch.device("cpu")
torch.accelerator.current_device_index = lambda: 0
torch.accelerator.set_device_index = lambda index: None
pin_memory.pin_memory = lambda data, device=None: (time.sleep(0.4), data)[1]

class Damaged(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, number):
        raise ValueError("early")

early = threading.Thread(target=lambda: list(DataLoader(Damaged())), daemon=True)
early.start()
early.join()
held = []

def train(cut_at):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(DataLoader(TensorDataset(torch.ones(4000, 8)), batch_size=4, num_workers=2, pin_memory=True))
    if cut_at == "held":
        held.append(batches)
    for step, (batch,) in enumerate(batches):
        model(batch).sum().backward()
        optimizer.step()
        if str(step) == cut_at:
            break

if __name__ == "__main__":
    train(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("flags", "cut_at"),
    [(("--steps", 3), "no step"), (("--steps", 3), "held"), ((), "2")],
    ids=["steps", "steps, by a script that holds the iterator", "by the script"],
)
def test_a_cut_epoch_ends_in_silence_and_what_failed_before_is_told(run_topout, tmp_path, flags, cut_at):
    (tmp_path / "train.py").write_text(TRAINS)
    done = run_topout(["run", "-n", 1, "-q", "--no-report", *flags, "train.py", cut_at])
    assert done.code == 0, done.stderr
    assert done.stderr.endswith("ValueError: early\n")
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize(
    ("module", "is_daemon", "is_told"),
    [
        ("torch.utils.data._utils.pin_memory", True, False),
        ("torch.utils.data._utils.pin_memory", False, True),
        ("__main__", True, True),
    ],
)
def test_only_a_daemon_thread_that_reads_from_a_loader_is_silent(monkeypatch, module, is_daemon, is_told):
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))
    silence_loaders()
    scope = {"__name__": module}
    exec("def read():\n    raise EOFError", scope)
    thread = threading.Thread(target=scope["read"], daemon=is_daemon)
    thread.start()
    thread.join()
    assert told == [EOFError] * is_told
