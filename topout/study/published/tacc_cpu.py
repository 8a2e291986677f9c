"""ResNet-50 on up to 512 Xeon nodes of Stampede2, from FanStore."""

from topout.study.baselines import laws
from topout.study.fit import fit
from topout.study.published.table import Table, machine, predicted_rows

PUBLISHED = {1: 32.0, 64: 1968.0, 128: 3901.0, 256: 7710.0, 512: 15109.0}
CALIBRATED = (1, 64, 128)


def table() -> Table:
    seen = {nodes: PUBLISHED[nodes] for nodes in CALIBRATED}
    found = fit(machine("resnet50-skx", "stampede2-skx"), seen, ["job.compute.transient", "job.gradients.message_s"])
    errors = {name: law(512) / PUBLISHED[512] - 1 for name, law in laws(seen).items()}
    return Table(
        name="tacc-cpu",
        title="ResNet-50 on Xeon nodes, batch 256 a node, FanStore",
        source="Z. Zhang, Scalable deep learning at TACC, 2019, slide 18",
        unit="images/s",
        rows=predicted_rows(found, PUBLISHED, set(CALIBRATED)),
        parameters=[
            f"spread of a step {found.job.compute.transient:.2%}",
            f"coordinator {found.job.gradients.message_s * 1e6:.1f} us a tensor and rank",
        ],
        notes=[
            "Other laws on the same points, at 512 nodes: "
            + ", ".join(f"{name} {error:+.1%}" for name, error in errors.items())
            + ". PMNF is as good here; it cannot say what another link would do."
        ],
    )
