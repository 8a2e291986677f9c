"""From a script on the login node to a job in the queue: site settings, job script, submission, what became of it."""
