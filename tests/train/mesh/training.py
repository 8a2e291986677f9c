"""Run on some ranks: trains in one mesh after another and says how far losses are from one process's.

argv: JSON [{"mesh": {...}, "model": "transformer", "optimizer": "adamw", "clip": null, "save": null, "restore": null,
"precision": null}].
Prints one JSON list: for each case the losses, those of one process for the same steps, and what each rank holds.
"""

import json
import sys

import torch
from torch import nn

import topout
from tests.train.mesh.models import LAYOUT, OPTIMIZERS, Transformer, images, resnet, token_loss, tokens
from topout.train.mesh import hybrid

NUM_STEPS = 5
TASKS = {
    "transformer": (Transformer, token_loss, tokens, LAYOUT),
    "resnet": (resnet, nn.functional.cross_entropy, images, {}),
}


def in_one_process(case):
    build, loss, batch, _ = TASKS[case.get("model", "transformer")]
    torch.manual_seed(7)
    model = build()
    optimizer = OPTIMIZERS[case.get("optimizer", "adamw")](model.parameters())
    losses = []
    for step in range(NUM_STEPS):
        inputs, targets = batch(step)
        value = loss(model(inputs), targets)
        optimizer.zero_grad()
        value.backward()
        if case.get("clip"):
            nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
        optimizer.step()
        losses.append(value.item())
    with torch.no_grad():
        losses.append(loss(model(batch(99)[0]), batch(99)[1]).item())
    return losses


def share(values, trainer):
    return [value.chunk(trainer.num_rows)[trainer.row] for value in values]


def in_mesh(case, place):
    build, loss, batch, layout = TASKS[case.get("model", "transformer")]
    # only rank 0's seed counts
    torch.manual_seed(7 if place.is_first else 1000 + place.rank)
    mesh = {"mesh": case["mesh"], "layout": layout}
    made = OPTIMIZERS[case.get("optimizer", "adamw")]
    trainer = hybrid(place, build, loss, made, mesh=mesh, clip_norm=case.get("clip"), precision=case.get("precision"))
    if case.get("restore"):
        assert trainer.restore(case["restore"]) == trainer.num_steps > 0
    losses = [0.0] * trainer.num_steps
    for step in range(trainer.num_steps, case.get("until", NUM_STEPS)):
        losses.append(trainer.step(*share(batch(step), trainer)).item())
    if case.get("save"):
        trainer.save(case["save"])
    if trainer.num_steps == NUM_STEPS:
        losses.append(trainer.evaluate(*share(batch(99), trainer)).item())
    held = trainer.memory()
    trainer.close()
    return losses, held


def main():
    torch.set_num_threads(1)
    context = topout.init()
    known, said = {}, []
    for case in json.loads(sys.argv[1]):
        key = json.dumps([case.get(name) for name in ("model", "optimizer", "clip")])
        # what rank 0 says is looked at, and the others' cores are its own
        if key not in known and context.place.is_first:
            known[key] = in_one_process(case)
        losses, held = in_mesh(case, context.place)
        said.append({"losses": losses, "alone": known.get(key), "held": held})
    print(json.dumps(said), flush=True)
    context.close()


if __name__ == "__main__":
    main()
