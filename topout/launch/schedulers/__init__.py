"""Where a job may run, one file each: who offers hosts, and at which address their ranks meet."""
