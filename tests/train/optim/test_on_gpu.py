"""On a GPU the kernels of Triton and torch's lists of tensors take the papers' steps, and bad norms are found later."""

import pytest
import torch

from tests.train.optim import paper
from tests.train.optim.test_layerwise import RATES, problem
from topout.schema.errors import TopoutError
from topout.train.optim.lamb import LAMB
from topout.train.optim.lars import LARS
from topout.train.optim.norm_watch import EVERY

pytestmark = pytest.mark.gpu


def on_gpu(weights, gradients, dtype=torch.float32):
    parameters = [torch.nn.Parameter(weight.to("cuda", dtype)) for weight in weights]
    return parameters, [[gradient.to("cuda", dtype) for gradient in step] for step in gradients]


@pytest.mark.parametrize("implementation", ["auto", "torch"])
@pytest.mark.parametrize("form", ["paper", "torch"])
def test_lars_is_the_paper_s(implementation, form):
    weights, gradients = problem()
    expected = paper.lars(weights, gradients, RATES, decay=5e-5, trust=0.02, rate_is_outside=form == "torch")
    found, there = on_gpu(weights, gradients)
    optimizer = LARS(found, 0.1, weight_decay=5e-5, trust=0.02, momentum_form=form, implementation=implementation)
    assert paper.stepped(optimizer, found, there, RATES)
    assert paper.deviation([f.cpu() for f in found], expected, weights) < 1e-5
    assert (optimizer._triton is not None and optimizer._triton.is_usable) or implementation == "torch"


@pytest.mark.parametrize("implementation", ["auto", "torch"])
def test_lamb_is_the_paper_s(implementation):
    weights, gradients = problem()
    rates = [0.01 * rate for rate in RATES]
    expected = paper.lamb(weights, gradients, rates, decay=0.01)
    found, there = on_gpu(weights, gradients)
    optimizer = LAMB(found, 0.1, weight_decay=0.01, implementation=implementation)
    assert paper.stepped(optimizer, found, there, rates)
    assert paper.deviation([f.cpu() for f in found], expected, weights) < 1e-5


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_16_bit_parameters_and_odd_addresses_are_taken(kind):
    weights, gradients = problem([(33, 65), (7,)])
    for dtype in (torch.bfloat16, torch.float16):
        plain, there = on_gpu(weights, gradients, dtype)
        paper.stepped(kind(plain, 0.1, implementation="torch"), plain, there, RATES[:2] * 3)
        found, there = on_gpu(weights, gradients, dtype)
        paper.stepped(kind(found, 0.1), found, there, RATES[:2] * 3)
        assert torch.allclose(found[0].float(), plain[0].float(), rtol=2e-2, atol=2e-3)
    store = torch.zeros(33 * 65 + 1, device="cuda")
    odd = torch.nn.Parameter(store[1:].view(33, 65).copy_(weights[0]))
    even, there = on_gpu(weights[:1], [step[:1] for step in gradients])
    paper.stepped(kind([odd], 0.1), [odd], there, RATES)
    paper.stepped(kind(even, 0.1), even, there, RATES)
    assert torch.allclose(odd, even[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("implementation", ["auto", "torch"])
def test_a_norm_that_is_not_finite_is_named_within_32_steps_and_its_tensor_left_alone(implementation):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)).cuda()
    optimizer = LARS(model.named_parameters(), 0.1, implementation=implementation)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model[1].weight.grad[0, 0] = float("nan")
    before = model[1].weight.detach().clone()
    with pytest.raises(TopoutError, match=r"norm of the (gradient|weights) of 1\.weight is not finite"):
        for _ in range(2 * EVERY):
            optimizer.step()
    if implementation == "auto":
        assert torch.equal(model[1].weight, before)
