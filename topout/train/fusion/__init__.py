"""Gradients reduced in fused groups while backward still runs, with no change to the user's module.

The engine under the two faces for scripts that one may not edit (`horovod`, `parallelise`). Not for a script that one
may edit: `topout.init().wrap` uses DDP, whose reducer is written in C++.
"""
