"""LARS and LAMB as their papers write them, in float64: what every implementation is held against."""

import torch


def lars(weights, gradients, rates, *, decay, momentum=0.9, trust=1e-3, rate_is_outside=False):
    """You et al. 2017, Algorithm 1; `gradients` by step. Tensors of one dimension get plain momentum."""
    weights = [weight.double().clone() for weight in weights]
    velocities = [torch.zeros_like(weight) for weight in weights]
    for rate, step in zip(rates, gradients, strict=True):
        for w, v, g in zip(weights, velocities, [gradient.double() for gradient in step], strict=True):
            local = trust * w.norm() / (g.norm() + decay * w.norm()) if w.ndim > 1 else 1.0
            entering = local * (g + (decay * w if w.ndim > 1 else 0))
            v.mul_(momentum).add_(entering * (1.0 if rate_is_outside else rate))
            w.sub_(v * (rate if rate_is_outside else 1.0))
    return weights


def lamb(weights, gradients, rates, *, decay, betas=(0.9, 0.999), eps=1e-6):
    """You et al. 2020, Algorithm 2, with phi the identity."""
    weights = [weight.double().clone() for weight in weights]
    means = [torch.zeros_like(weight) for weight in weights]
    squares = [torch.zeros_like(weight) for weight in weights]
    for t, (rate, step) in enumerate(zip(rates, gradients, strict=True), start=1):
        for w, m, v, g in zip(weights, means, squares, [gradient.double() for gradient in step], strict=True):
            m.copy_(betas[0] * m + (1 - betas[0]) * g)
            v.copy_(betas[1] * v + (1 - betas[1]) * g**2)
            r = (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
            if w.ndim > 1:
                r = r + decay * w
                r = r * (w.norm() / r.norm())
            w.sub_(rate * r)
    return weights


def stepped(optimizer, parameters, gradients, rates):
    """Takes the steps; whether gradients came out of them as they went in."""
    untouched = True
    for rate, step in zip(rates, gradients, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone(memory_format=torch.preserve_format)
        optimizer.step()
        untouched &= all(torch.equal(p.grad, g) for p, g in zip(parameters, step, strict=True))
    return untouched


def deviation(found, expected, start):
    """Of all tensors together, as a share of how far they moved."""
    difference = sum((f.detach().double() - e).square().sum() for f, e in zip(found, expected, strict=True))
    moved = sum((e - s.double()).square().sum() for e, s in zip(expected, start, strict=True))
    return float((difference / moved).sqrt())
