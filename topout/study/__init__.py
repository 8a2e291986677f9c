"""Many runs and no run at all: what a job would do on another number of nodes, another link, another machine.

Everything here is arithmetic on descriptions: a system and a job go in, seconds and samples a second come out, each
with an interval. Not a trace replay: no recording of the target scale is needed.
"""
