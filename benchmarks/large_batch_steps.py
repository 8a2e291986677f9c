"""Step times on ResNet-50's 161 tensors, and how far each optimizer is from its paper."""

import functools
import importlib.util
import random
import statistics
import sys
import time
import types
import warnings
from datetime import date
from pathlib import Path

import torch

from tests.train.optim import paper
from topout.train.optim.lamb import LAMB
from topout.train.optim.lars import LARS

NUM_DRAWS = 2000
# defaults differ; the papers' are set where an optimizer knows them
OF_THE_PAPERS = {
    "LARS": {"trust": 1e-3, "trust_coeff": 1e-3, "trust_coefficient": 1e-3},
    "LAMB": {"bias_correction": True, "eps": 1e-6, "max_grad_norm": None},
}
RATES = [0.1, 0.4, 0.8, 1.2, 1.6, 0.8]


def resnet50_shapes():
    shapes, width = [(64, 3, 7, 7), (64,), (64,)], 64
    for planes, blocks in [(64, 3), (128, 4), (256, 6), (512, 3)]:
        for block in range(blocks):
            for shape in ((planes, width, 1, 1), (planes, planes, 3, 3), (4 * planes, planes, 1, 1)):
                shapes += [shape, shape[:1], shape[:1]]
            if block == 0:
                shapes += [(4 * planes, width, 1, 1), (4 * planes,), (4 * planes,)]
            width = 4 * planes
    shapes += [(1000, 2048), (1000,)]
    assert (len(shapes), sum(torch.Size(shape).numel() for shape in shapes)) == (161, 25_557_032)
    return shapes


def groups(parameters, decay):
    """Peers leave out biases and batch norm only if they are told to."""
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def timm():
    """Its optimizers without its package, which wants torchvision."""
    found = importlib.util.find_spec("timm")
    if found is None:
        raise ImportError("timm")
    folder = next(iter(found.submodule_search_locations))
    for name, path in (("timm", folder), ("timm.optim", f"{folder}/optim")):
        module = types.ModuleType(name)
        module.__path__ = [path]
        sys.modules[name] = module
    from timm.optim.lamb import Lamb
    from timm.optim.lars import Lars

    return Lars, Lamb


def torch_optimizer():
    import torch_optimizer as library

    return library.LARS, library.Lamb


def pytorch_optimizer():
    import pytorch_optimizer as library

    return library.LARS, library.Lamb


@functools.cache
def peers():
    """Name -> (LARS, LAMB), or None where it is not installed."""
    found = {}
    for load in (timm, torch_optimizer, pytorch_optimizer):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[load.__name__] = load()
        except ImportError:
            found[load.__name__] = None
    return found


def contestants(device):
    """Name -> (constructor, what it is held against)."""
    sgd, adamw = torch.optim.SGD, torch.optim.AdamW
    makers = {
        "SGD, fused": (lambda p: sgd(groups(p, 5e-5), lr=1e-4, momentum=0.9, fused=True), "SGD, fused"),
        "SGD, foreach": (lambda p: sgd(groups(p, 5e-5), lr=1e-4, momentum=0.9, foreach=True), "SGD, fused"),
        "topout LARS": (lambda p: LARS(p, 1e-2, weight_decay=5e-5), "SGD, fused"),
        "topout LARS, torch alone": (lambda p: LARS(p, 1e-2, weight_decay=5e-5, implementation="torch"), "SGD, fused"),
    }
    libraries = peers()
    for name, found in libraries.items():
        makers[f"{name} LARS"] = (
            found and (lambda p, kind=found[0]: kind(groups(p, 5e-5), lr=1e-2, momentum=0.9)),
            "SGD, fused",
        )
    makers |= {
        "AdamW, fused": (lambda p: adamw(groups(p, 0.01), lr=1e-6, fused=True), "AdamW, fused"),
        "topout LAMB": (lambda p: LAMB(p, 1e-5, weight_decay=0.01), "AdamW, fused"),
        "topout LAMB, torch alone": (
            lambda p: LAMB(p, 1e-5, weight_decay=0.01, implementation="torch"),
            "AdamW, fused",
        ),
    }
    for name, found in libraries.items():
        makers[f"{name} Lamb"] = (found and (lambda p, kind=found[1]: kind(groups(p, 0.01), lr=1e-5)), "AdamW, fused")
    return makers


def step_times(device, rounds, steps):
    """Name -> seconds of a step by round; None for what is not installed."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, device=device) * 0.05) for shape in resnet50_shapes()]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    start = [(p.detach().clone(), p.grad.clone()) for p in parameters]
    made = {name: make and make(parameters) for name, (make, _) in contestants(device).items()}
    times = {name: [] if optimizer else None for name, optimizer in made.items()}
    chance = random.Random(0)
    there = [name for name, optimizer in made.items() if optimizer]
    for number in range(rounds + 2):
        for name in chance.sample(there, len(there)):
            # peers write into gradients, and none may train on what another left
            with torch.no_grad():
                for parameter, (weight, gradient) in zip(parameters, start, strict=True):
                    parameter.copy_(weight)
                    parameter.grad.copy_(gradient)
            took = timed(made[name], device, steps)
            if number >= 2:
                times[name].append(took)
    return times


def timed(optimizer, device, steps):
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps


def ratio(ours, theirs):
    """Median of the rounds' ratios, and the interval that holds 95 % of the medians of resampled rounds."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    chance = random.Random(0)
    draws = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(NUM_DRAWS))
    return statistics.median(ratios), draws[round(0.025 * NUM_DRAWS)], draws[round(0.975 * NUM_DRAWS) - 1]


def table(times, device):
    lines = ["| optimizer | step (median) | of fused SGD or AdamW |", "|---|---|---|"]
    for name, (_, against) in contestants(device).items():
        if times[name] is None:
            lines.append(f"| {name} | not installed | |")
            continue
        middle, low, high = ratio(times[name], times[against])
        held = f"{middle:.2f} ({low:.2f} to {high:.2f}) of {against}" if name != against else "1"
        lines.append(f"| {name} | {1e3 * statistics.median(times[name]):.2f} ms | {held} |")
    return lines


def deviations(device):
    """Six steps at a rate that rises from 0.1 to 1.6 and falls to 0.8, on the first 20 tensors, against float64."""
    torch.manual_seed(1)
    shapes = resnet50_shapes()[:20]
    start = [torch.randn(shape) * 0.05 for shape in shapes]
    gradients = [[torch.randn(shape) * 1e-3 for shape in shapes] for _ in RATES]
    lines = ["| optimizer | constant rate | varying rate | leaves gradients alone |", "|---|---|---|---|"]
    libraries = {"topout": (LARS, LAMB), **peers()}
    for name, found in libraries.items():
        for index, (label, scale) in enumerate((("LARS", 1.0), ("LAMB", 0.01))):
            if not found:
                lines.append(f"| {name} {label} | not installed | | |")
                continue
            apart, untouched = [], True
            for course in ([0.4] * len(RATES), RATES):
                rates = [scale * rate for rate in course]
                expected = (paper.lars if label == "LARS" else paper.lamb)(start, gradients, rates, decay=5e-5)
                mine = [torch.nn.Parameter(weight.clone().to(device)) for weight in start]
                options = {"momentum": 0.9} if label == "LARS" else {}
                options |= {"debias": True} if (name, label) == ("torch_optimizer", "LAMB") else {}
                optimizer = found[index](mine if name == "topout" else groups(mine, 5e-5), lr=rates[0], **options)
                for group in optimizer.param_groups:
                    group.update({key: value for key, value in OF_THE_PAPERS[label].items() if key in group})
                    if name == "topout":
                        group["weight_decay"] = 5e-5
                on_device = [[gradient.to(device) for gradient in step] for step in gradients]
                untouched &= paper.stepped(optimizer, mine, on_device, rates)
                apart.append(paper.deviation([m.cpu() for m in mine], expected, start))
            lines.append(f"| {name} {label} | {apart[0]:.1e} | {apart[1]:.1e} | {'yes' if untouched else 'no'} |")
    return lines


def report(device, thread_counts, rounds, machine):
    parts = [
        "# What a step of LARS and LAMB costs",
        "",
        f"{date.today()}; {machine}; torch {torch.__version__}; ResNet-50's 161 tensors, 25,557,032 parameters,",
        f"float32; {rounds} rounds, all optimizers once a round in random order; medians with 95 % intervals; made by",
        f"`benchmarks/{Path(__file__).name.replace('_steps', '')} optimizers`.",
        "",
    ]
    for num_threads in thread_counts if device == "cpu" else [None]:
        if num_threads:
            torch.set_num_threads(num_threads)
        where = f"CPU, {num_threads} thread{'s' if num_threads > 1 else ''}" if num_threads else "GPU"
        steps = 1 if device == "cpu" else 10
        parts += [f"## {where}", "", *table(step_times(device, rounds, steps), device), ""]
    parts += [
        "## Distance from the papers",
        "",
        "Share of the whole update by which weights differ from the papers' algorithms in float64 after six steps.",
        "",
        *deviations(device),
        "",
    ]
    return "\n".join(parts)
