"""Where a job may run, one file a scheduler or MPI launcher: a table of its variables and its commands.

A plug-in has these names (`slurm` is the fullest example); launchers whose tasks are ranks have the first group alone.

    TITLE                                   as people write it
    detect(environ)                         Allocation, or None outside of this scheduler; runs no command
    rank_variables(rank, world)             its own variables, telling the truth to a rank that topout started

    start_commands(allocation, command, num_hosts=, variables=)   to run a command once on each of the first hosts
    start_environment(environ)              the environment those commands need

    job_id(environ), job_hosts(environ)     of the whole job and equal on all its hosts, for ranks of an mpirun in it

    WARNING_SIGNAL, directives(request), submit_command(script), read_job_id(output), task_prefix(request)
"""
