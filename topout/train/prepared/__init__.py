"""Updates computed while gradients travel, and put in place by `optimizer.step()` if nothing came in between."""
