"""Under `topout run` the noise scale is in the run folder, in the analysis and on the page."""

import json

SCRIPT = """
import torch
from torch import nn
import topout
from topout.train.noise_scale import NoiseScale

ctx = topout.init()
torch.manual_seed(ctx.rank)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.001)
model, optimizer = ctx.wrap(model, optimizer, buckets="default")
noise = NoiseScale(model, optimizer, ctx.place, batch_size=4, every=2)
for step in range(40):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 1)).backward()
    optimizer.step()
print(noise.value)
"""


def test_a_run_leaves_its_noise_scale_behind(run_topout, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    ran = run_topout(["run", "-n", "2", script])
    assert ran.code == 0, ran.stderr
    (folder,) = (tmp_path / "topout-runs").iterdir()
    found = json.loads((folder / "analysis.json").read_text())["measures"]["noise_scale"]
    assert found["batch_size"] == 8
    assert found["num_samples"] >= 19  # the last may still have been under way
    assert found["steps"][0] == 15  # the eighth sample is the first that says something
    assert 'id="noise-scale"' in (folder / "report.html").read_text()
