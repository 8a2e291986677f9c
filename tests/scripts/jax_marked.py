"""A loop of JAX that marks its own steps and its input, which is slow."""

import time

import jax
import jax.numpy as jnp

import topout


@jax.jit
def step(weights, x):
    return weights - 0.01 * jax.grad(lambda w: jnp.sum((x @ w) ** 2))(weights)


weights = jnp.ones((256, 256))
for _ in range(20):
    with topout.span("input"):
        time.sleep(0.02)
        x = jnp.ones((64, 256))
    weights = step(weights, x)
    weights.block_until_ready()
    topout.step()
print("done")
