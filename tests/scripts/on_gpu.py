"""A convolutional network on one GPU, in the ways people run it; prints a digest of losses and weights.

Usage: on_gpu.py WAY, one of plain, autocast, compiled, graph, starved, launching, out-of-memory.
"""

import hashlib
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WAY = sys.argv[1]
STEPS, BATCH = 60, 64


class Images(Dataset):
    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        if WAY == "starved" and index % BATCH == 0:
            time.sleep(0.05)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 64, 64, generator=generator), index % 10


def network():
    layers, width = [nn.Conv2d(3, 128, 3, padding=1)], 128
    for _ in range(6):
        layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).cuda()


def train_small(model, optimizer, lossf, digest):
    """Kernels that are done before the host has launched the next one."""
    x, y = torch.randn(8, 16, device="cuda"), torch.zeros(8, dtype=torch.long, device="cuda")
    for _ in range(20 * STEPS):
        optimizer.zero_grad()
        loss = lossf(model(x), y)
        loss.backward()
        optimizer.step()
    digest.update(loss.detach().cpu().numpy().tobytes())


def train_with_graph(model, optimizer, lossf, digest):
    """The whole step captured once and replayed."""
    x, y = torch.randn(BATCH, 3, 64, 64, device="cuda"), torch.zeros(BATCH, dtype=torch.long, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad()
            lossf(model(x), y).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        loss = lossf(model(x), y)
        loss.backward()
        optimizer.step()
    for _ in range(STEPS):
        graph.replay()
    digest.update(loss.detach().cpu().numpy().tobytes())


def train(model, optimizer, lossf, digest):
    forward = torch.compile(model, fullgraph=True) if WAY == "compiled" else model
    losses = []
    for images, labels in DataLoader(Images(), batch_size=BATCH, num_workers=0 if WAY == "starved" else 8):
        x, y = images.cuda(non_blocking=True), labels.to("cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=WAY in ("autocast", "compiled")):
            loss = lossf(forward(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    digest.update(torch.stack(losses).cpu().numpy().tobytes())


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    small = [layer for _ in range(10) for layer in (nn.Linear(16, 16), nn.ReLU())]
    model = nn.Sequential(*small).cuda() if WAY == "launching" else network()
    if WAY == "out-of-memory":
        held = []
        while True:
            held.append(torch.empty(8 << 30, dtype=torch.uint8, device="cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    digest = hashlib.sha256()
    ways = {"graph": train_with_graph, "launching": train_small}
    ways.get(WAY, train)(model, optimizer, nn.CrossEntropyLoss(), digest)
    for value in model.state_dict().values():
        digest.update(value.detach().float().cpu().numpy().tobytes())
    print("DIGEST", digest.hexdigest())


if __name__ == "__main__":
    main()
