"""Before a job: is this machine or allocation fit for it? `probes` run on every host, `judges` read their findings."""
