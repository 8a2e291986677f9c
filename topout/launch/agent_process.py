"""The process of a launcher that follows, which `starters` has the scheduler start on each host.

Run by its path: `-m` would load 5 ms of what finds modules, and words with blanks or signs of the shell's, as `-c`
needs, may not survive a site's own `srun` or `blaunch`. Not for importing.
"""

import gc

from topout.launch import start_code

if __name__ == "__main__":
    # as in `topout run`: until the ranks have started
    gc.disable()
    start_code.use()
    # out of that file
    from topout.launch.agent import run_process

    run_process()
