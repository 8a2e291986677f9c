"""How many images a second ResNet-50 trains at on one GPU from synthetic input, and what each switch brings.

    python benchmarks/resnet50.py --out benchmarks/results --machine h200        # in 7 minutes what fits
    python benchmarks/resnet50.py --only folded,graph --budget-s 300             # some ways, beside the reference
    python benchmarks/resnet50.py --device cpu --tiny                            # the whole flow, without meaning

The reference has all switches of `topout.train.compute` on: bf16, channels last, compiled, fused, autotuned, batch 512.
Each way is a process of its own (what cuDNN and the compiler have chosen cannot be unchosen) that takes steps when it
is told to. Rounds of the reference and of a way alternate, and the ratio is that of rounds side by side. Results are
written after each way, so a run that is cut off loses nothing. Needs torch and, for the recipe itself, topout.
"""

import argparse
import contextlib
import json
import math
import os
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}  # two-sided 95 %, by number of rounds

EAGER = {"compile": False}
NCHW = {"channels_last": False, "compile": False, "fused_optimizer": False, "cudnn_benchmark": False}
# the most telling first, for the time on a machine ends
WAYS = {
    "recipe": {},  # topout/recipes/resnet50.py --synthetic, as a user starts it
    "first convolution folded to 16 channels": {"folded_stem": 16},
    "compiler: tunes pointwise and reductions": {"options": {"max_autotune_pointwise": True}},
    "whole step in one CUDA graph": {"graph": True},
    "first convolution folded to 12 channels": {"folded_stem": 12},
    "compiler: coordinate descent": {"options": {"coordinate_descent_tuning": True}},
    "without compiler": EAGER,
    "without fused optimizer": {"fused_optimizer": False},
    "without cuDNN autotune": {"cudnn_benchmark": False},
    "without channels last": {"channels_last": False},
    "batch 1024": {"batch": 1024},
    "batch 256": {"batch": 256},
    "fp16 with scaler": {"precision": "fp16", "images": "float16"},
    "activations recomputed": {"checkpoint_activations": ["layer?.?"]},
    "four batches of 128 a step": {"batch": 128, "accumulate": 4},
    "compiler: 1x1 convolutions as products": {"options": {"conv_1x1_as_mm": True}},
    "cuDNN autotune over all algorithms": {"cudnn_limit": 0},
    "compiler: small kernels combined": {"options": {"combo_kernels": True}},
    "compiler: recomputes more": {"functorch": {"aggressive_recomputation": True}},
    "bf16 alone": {**NCHW, "precision": "bf16"},
    "TF32 alone": {**NCHW, "precision": "fp32"},
    "fp32": {**NCHW, "precision": "fp32", "tf32": False},
    "images in fp32": {"images": "float32"},
    "compiler: reduce-overhead": {"compile": "reduce-overhead"},
    "compiler: cooperative reductions": {"options": {"triton.cooperative_reductions": True}},
    "compiler: max-autotune": {"compile": "max-autotune-no-cudagraphs"},
}
REFERENCE = {
    "precision": "bf16", "tf32": True, "channels_last": True, "compile": True, "fused_optimizer": True,
    "cudnn_benchmark": True, "batch": 512, "images": "bfloat16", "folded_stem": 0, "options": {}, "functorch": {},
    "cudnn_limit": None, "graph": False, "checkpoint_activations": [], "accumulate": 1,
}  # fmt: skip
SWITCHES = ("precision", "tf32", "channels_last", "compile", "fused_optimizer", "cudnn_benchmark",
            "checkpoint_activations", "accumulate")  # fmt: skip


# ---- one way, in its own process


class Training:
    """Steps as the recipe takes them."""

    def __init__(self, way, args):
        import torch
        from torch._functorch import config as functorch_config

        sys.path.insert(0, str(REPOSITORY))
        from topout.recipes.resnet50_model import ResNet
        from topout.train.compute import Compute

        self.torch, self.device = torch, torch.device(args.device)
        depths, width, size = ((1, 1), 8, 32) if args.tiny else ((3, 4, 6, 3), 64, 224)
        self.batch = way["batch"] // 64 if args.tiny else way["batch"]
        torch.manual_seed(0)
        for name, value in way["functorch"].items():
            setattr(functorch_config, name, value)
        if way["cudnn_limit"] is not None:
            torch.backends.cudnn.benchmark_limit = way["cudnn_limit"]
        model = ResNet(depths, width, 1000, way["folded_stem"]).to(self.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-5, nesterov=True)
        compute = Compute(
            **{name: way[name] for name in SWITCHES},
            compile_options=way["options"] if way["options"] and self.device.type == "cuda" else None,
            compile_backend="inductor" if self.device.type == "cuda" else "aot_eager",
            dynamic_shapes=False,
            check_loss_every=0 if way["graph"] else 16,
        )
        if self.device.type == "cpu" and isinstance(way["compile"], str):
            compute = Compute(compile=True, compile_backend="aot_eager")
        self.model, self.optimizer = compute.apply(model, optimizer)
        self.stepper = compute.stepper(self.model, self.optimizer)
        images = torch.randn(self.batch, 3, size, size, device=self.device).to(getattr(torch, way["images"]))
        if way["precision"] == "fp32":
            images = images.float()
        self.images = images.contiguous(memory_format=torch.channels_last) if way["channels_last"] else images
        self.labels = torch.randint(0, 1000, (self.batch,), device=self.device)
        self.criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
        self.graph = None
        self.wants_graph = way["graph"] and self.device.type == "cuda"

    def step(self):
        with self.stepper.forward():
            loss = self.criterion(self.model(self.images), self.labels)
        self.stepper.backward(loss)

    def warm(self):
        torch = self.torch
        if not self.wants_graph:
            for _ in range(8):
                self.step()
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(8):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def steps(self, count):
        for _ in range(count):
            if self.graph is not None:
                self.graph.replay()
            else:
                self.step()

    def wait(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def round(self, seconds):
        """Images a second over about so many seconds, after two steps that get memory back."""
        self.steps(2)
        self.wait()
        start_s = time.perf_counter()
        self.steps(3)
        self.wait()
        count = max(3, math.ceil(3 * seconds / (time.perf_counter() - start_s)))
        start_s = time.perf_counter()
        self.steps(count)
        self.wait()
        rate = count * self.batch / (time.perf_counter() - start_s)
        memory = 0
        if self.device.type == "cuda":
            memory = self.torch.cuda.max_memory_allocated()
            if self.graph is None:
                self.torch.cuda.empty_cache()  # the other process needs it for its turn
        return {"rate": rate, "memory": memory}

    def profile(self, num_steps=20):
        """The share of wall time, from the first launch to the end of the last kernel, in which a kernel runs."""
        from torch.profiler import ProfilerActivity, profile, record_function

        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self.device.type == "cuda")
        self.steps(3)
        self.wait()
        with profile(activities=kinds) as profiler:
            self.steps(1)  # the profiler's own beginning is not the window's
            self.wait()
            with record_function("window"):
                self.steps(num_steps)
                self.wait()
        with tempfile.TemporaryDirectory() as folder:
            profiler.export_chrome_trace(f"{folder}/trace.json")
            events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
        return kernel_share(events, "kernel" if self.device.type == "cuda" else "cpu_op")


def kernel_share(events, category):
    """Union of kernels over the window, and which kernels took most of it; copies and fills are no kernels."""
    window = next(event for event in events if event.get("name") == "window" and event.get("ph") == "X"
                  and event.get("cat") == "user_annotation")  # fmt: skip
    first, last = window["ts"], window["ts"] + window["dur"]
    kernels = sorted(
        (max(event["ts"], first), min(event["ts"] + event["dur"], last), event["name"])
        for event in events
        if event.get("ph") == "X" and event.get("cat") == category
        and event["ts"] < last and event["ts"] + event["dur"] > first
    )  # fmt: skip
    busy, reached, by_name = 0.0, first, {}
    for start, end, name in kernels:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
        by_name[name] = by_name.get(name, 0.0) + end - start
    top = sorted(by_name.items(), key=lambda item: -item[1])[:15]
    return {
        "share": busy / window["dur"], "wall_ms": window["dur"] / 1e3, "kernels": len(kernels),
        "top": [[name[:100], spent / window["dur"]] for name, spent in top],
    }  # fmt: skip


def serve(way, args):
    """Does what each line of standard input says and answers with a line; a failure is an answer too."""
    training = None
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed goes to the log
    for line in sys.stdin:
        request, *values = json.loads(line)
        start_s = time.perf_counter()
        try:
            if request == "warm":
                training = training or Training(way, args)
                training.warm()
                training.wait()
                result = {"seconds": time.perf_counter() - start_s}
            else:
                result = getattr(training, request)(*values)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps(result), file=answer, flush=True)


# ---- the ways beside each other


class Way:
    """A process that takes steps when told to."""

    def __init__(self, name, changes, args):
        self.name, self.way = name, {**REFERENCE, **changes}
        self.log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 (ends with the process)
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", json.dumps(self.way), "--device", args.device]
            + ["--tiny"] * args.tiny,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
        )  # fmt: skip
        self.answers = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            self.answers.put(json.loads(line))
        self.answers.put({"error": "the process ended"})

    def ask(self, *request, timeout_s):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = self.answers.get(timeout=max(1.0, timeout_s))
        except (OSError, queue.Empty) as error:
            answer = {"error": f"no answer in {timeout_s:.0f} s" if isinstance(error, queue.Empty) else str(error)}
        if "error" in answer:
            self.log.seek(max(0, self.log.seek(0, 2) - 1500))
            answer["log"] = self.log.read()
            raise RuntimeError(json.dumps(answer))
        return answer

    def end(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def measure(reference, way, args, left_s):
    """Rounds in turn; both rates, and the ratio of neighbours with its 95 % interval."""
    rates, ratios, memory = [], [], 0
    warm_s = way.ask("warm", timeout_s=min(left_s() - 20, args.warm_s))["seconds"]
    for _ in range(args.rounds):
        beside = reference.ask("round", args.round_s, timeout_s=120)["rate"]
        one = way.ask("round", args.round_s, timeout_s=120)
        rates.append(one["rate"])
        ratios.append(one["rate"] / beside)
        memory = max(memory, one["memory"])
        if left_s() < 15 and len(rates) > 1:
            break
    return {"rates": rates, "ratios": ratios, "warm_s": warm_s, "memory": memory}


def alone(reference, warm_s):
    """What each table begins with: a few seconds of the reference by itself."""
    found = reference.ask("round", 3, timeout_s=120)
    return {"rates": [found["rate"]], "ratios": [], "warm_s": warm_s, "memory": found["memory"]}


def run_recipe(args, left_s):
    """The recipe as a user starts it, with nothing of this file."""
    options = ["--small", "--steps", "10"] if args.tiny else ["--batch-size", "512", "--steps", "150"]
    done = subprocess.run(
        [sys.executable, REPOSITORY / "topout/recipes/resnet50.py", "--synthetic", *options, *args.recipe.split()],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False,
        timeout=max(5, left_s() - 10),
    )  # fmt: skip
    rate = re.search(r"^([\d,]+) img/s$", done.stdout, re.MULTILINE)
    if not rate:
        raise RuntimeError(json.dumps({"error": f"ended with {done.returncode}", "log": done.stderr[-1500:]}))
    return {"rates": [float(rate[1].replace(",", ""))], "ratios": []}


def interval(ratios):
    if len(ratios) < 2:
        return None
    half = STUDENT[min(8, len(ratios))] * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return statistics.mean(ratios) - half, statistics.mean(ratios) + half


def together(results):
    """All that is surely quicker at the same batch, in one."""
    both = {"options": {}, "functorch": {}}
    for name, result in results.items():
        changes = WAYS.get(name, {})
        found = interval(result.get("ratios", []))
        if found is None or found[0] <= 1.002 or "batch" in changes:
            continue
        for key, value in changes.items():
            if isinstance(value, dict):
                both[key] |= value
            elif key != "folded_stem" or "folded_stem" not in both:
                both[key] = value
    return {key: value for key, value in both.items() if value}


def run(args):
    deadline_s = time.monotonic() + args.budget_s
    results, profiles = {}, {}

    def left_s():
        return deadline_s - time.monotonic()

    def kept(name, work):
        """Whatever happens to one way, the others go on, and what is known is written."""
        start_s = time.monotonic()
        try:
            results[name] = work()
        except Exception as error:
            results[name] = {"error": str(error)}
        print(f"{name}: {results[name]} in {time.monotonic() - start_s:.0f} s, {left_s():.0f} s left", flush=True)
        write(args, results, profiles)
        return results[name]

    wanted = [name for name in WAYS if not args.only or any(word in name for word in args.only.split(","))]
    reference = Way("reference", {}, args)
    try:
        warm_s = reference.ask("warm", timeout_s=left_s())["seconds"]
        kept("reference", lambda: alone(reference, warm_s))
        with contextlib.suppress(RuntimeError):
            profiles["reference"] = reference.ask("profile", timeout_s=120)
        if "recipe" in wanted:
            kept("recipe", lambda: run_recipe(args, left_s))
            wanted.remove("recipe")
        names = iter([*wanted, None])
        # the next one loads its libraries meanwhile
        name = next(names)
        way = Way(name, WAYS[name], args) if name else None
        while name is not None and left_s() > args.reserve_s:
            following = next(names)
            behind = Way(following, WAYS[following], args) if following else None
            kept(name, lambda way=way: measure(reference, way, args, left_s))
            way.end()
            name, way = following, behind
        if way is not None:
            way.end()
        best = together(results)
        if best and left_s() > 30:
            way = Way("together", best, args)
            found = kept(f"together: {json.dumps(best)}", lambda: measure(reference, way, args, left_s))
            if "error" not in found:
                with contextlib.suppress(RuntimeError):
                    profiles["together"] = way.ask("profile", timeout_s=60)
            way.end()
    finally:
        reference.end()
        write(args, results, profiles)


def write(args, results, profiles):
    text = table(args, results, profiles)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{date.today()}-resnet50-{args.machine}.md").write_text(text)
    return text


def table(args, results, profiles):
    lines = [
        "# Images a second of ResNet-50 on one device, and what each switch brings",
        f"{date.today()}; {args.machine}; synthetic input; made by `benchmarks/resnet50.py`. Reference: bf16, channels",
        "last, compiled, fused SGD, cuDNN autotune, batch 512, 224x224. A way differs from it in what its name says.",
        "Rounds of both alternate, each in a process of its own; ratio: mean of neighbouring rounds, 95 % interval.",
        "",
        "| way | img/s (mean of rounds) | / reference | 95 % interval | rounds | memory GiB | first steps s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        if "error" in result:
            lines.append(f"| {name} | {_plain(result['error'])} | | | | | |")
            continue
        found, ratios = interval(result["ratios"]), result["ratios"]
        ratio = f"{statistics.mean(ratios):.4f}" if ratios else ""
        lines.append(
            f"| {name} | {statistics.mean(result['rates']):,.0f} | {ratio} "
            f"| {f'{found[0]:.4f} – {found[1]:.4f}' if found else ''} | {len(result['rates'])} "
            f"| {_measured(result, 'memory', 2**30, '.1f')} | {_measured(result, 'warm_s', 1, '.0f')} |"
        )
    for name, profile in profiles.items():
        lines += [
            "",
            f"## Profiler window of the {name}",
            f"{profile['share']:.1%} of {profile['wall_ms']:.0f} ms (20 steps, from launch to synchronisation) has a "
            f"kernel running that is no copy and no fill; {profile['kernels']} kernels. Those with most time:",
            "",
            "| kernel | of the window |",
            "|---|---|",
            *(f"| `{_plain(kernel)}` | {share:.1%} |" for kernel, share in profile["top"]),
        ]
    return "\n".join(lines) + "\n"


def _measured(result, name, unit, how):
    return format(result[name] / unit, how) if name in result else ""


def _plain(text):
    return re.sub(r"[|\n`]+", " ", text)[:240]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny net, to see that this file works")
    parser.add_argument("--budget-s", type=float, default=420)
    parser.add_argument("--reserve-s", type=float, default=60, help="kept for what helped, taken together")
    parser.add_argument("--warm-s", type=float, default=150, help="most for the first steps of a way")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--round-s", type=float, default=0.8)
    parser.add_argument("--only", help="words of the ways to take, with commas")
    parser.add_argument("--recipe", default="", help="further options for the recipe")
    parser.add_argument("--machine", default=f"{os.cpu_count()}-cores")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(json.loads(arguments.serve), arguments)
    else:
        run(arguments)
