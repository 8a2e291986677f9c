"""What scripts do to gradients between backward and step, as part of a rank's script."""

TOUCHING = """def clipped(model, optimizer):
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()


def replaced(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = parameter.grad * 2
    optimizer.step()
"""
