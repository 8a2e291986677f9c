"""Environments of jobs, by where they come from.

Those of Slurm, Open MPI and MPICH were recorded in a laboratory of two nodes n1 and n2 under Slurm 22.05; what tells
nothing is left out. Those of LSF, PBS and Flux are put together from public documentation, which each one names; nobody
has run them here.
"""

SLURM_BATCH = {  # sbatch -N2 --ntasks-per-node=1 -c2
    "SLURMD_NODENAME": "n1",
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_CPUS_PER_TASK": "2",
    "SLURM_GTIDS": "0",
    "SLURM_JOB_CPUS_PER_NODE": "2(x2)",
    "SLURM_JOB_ID": "2",
    "SLURM_JOB_NAME": "job.sh",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "0",
    "SLURM_NODELIST": "n[1-2]",
    "SLURM_NPROCS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_PROCID": "0",
    "SLURM_SUBMIT_HOST": "login",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}
SLURM_TASK = {  # srun -n2 in that script, on n2
    **SLURM_BATCH,
    "SLURMD_NODENAME": "n2",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x3",
    "SLURM_CPU_BIND_LIST": "0x3",
    "SLURM_CPU_BIND_TYPE": "mask_cpu:",
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_GTIDS": "1",
    "SLURM_LAUNCH_NODE_IPADDR": "10.77.0.254",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_SRUN_COMM_HOST": "10.77.0.254",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
SLURM_SINGLE_TASK = {  # srun -N1 -n1 in that script: the job's SLURM_NTASKS is overwritten, its node list is not
    **SLURM_BATCH,
    "SLURM_NNODES": "1",
    "SLURM_NPROCS": "1",
    "SLURM_NTASKS": "1",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_TASKS_PER_NODE": "1",
}
SLURM_SALLOC = {  # salloc -N2 -n2, on the login node
    "SLURM_JOB_CPUS_PER_NODE": "1(x2)",
    "SLURM_JOB_ID": "3",
    "SLURM_JOB_NAME": "interactive",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_NPROCS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}
SLURM_INTERACTIVE_STEP = {  # salloc -N2 -n2 with LaunchParameters=use_interactive_step, on n1
    **SLURM_SALLOC,
    "SLURM_PROCID": "0",
    "SLURM_PTY_PORT": "33185",
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
SLURM_PTY = {  # srun -N2 -n2 --pty bash
    **SLURM_SALLOC,
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_PTY_PORT": "42893",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
SLURM_HET_BATCH = {  # sbatch -N1 -n1 : -N1 -n2
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_ID": "4",
    "SLURM_JOB_ID_HET_GROUP_0": "4",
    "SLURM_JOB_ID_HET_GROUP_1": "5",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_NTASKS": "1",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "1",
    "SLURM_TASKS_PER_NODE_HET_GROUP_1": "2",
}
SLURM_HET_TASK = {  # srun --het-group=0,1 in that script, the last task
    **SLURM_HET_BATCH,
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1,2",
}
OPENMPI = {  # mpirun of Open MPI 4.1.4, rank 1 of 2
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_MCA_ess_base_jobid": "773390337",
    "OMPI_MCA_orte_hnp_uri": "773390336.0;tcp://192.0.2.2,10.77.0.254:48621;tcp6://[fd00::2]:52637",
    "PMIX_NAMESPACE": "773390337",
    "PMIX_RANK": "1",
}
OPENMPI_IN_SLURM = {  # mpirun of Open MPI in a batch script of 3 tasks: rank 2 on n2, below a daemon that srun started
    **SLURM_BATCH,
    "SLURMD_NODENAME": "n2",
    "SLURM_JOB_ID": "6",
    "SLURM_NNODES": "1",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_MCA_orte_hnp_uri": "1308033024.0;tcp://10.77.0.1:47707",
    "PMIX_NAMESPACE": "1308033025",
    "PMIX_RANK": "2",
}
MPICH_IN_SLURM = {  # mpiexec of MPICH 4.0.2 in the same script: its daemons' step has 2 tasks, the job's are 3
    **SLURM_TASK,
    "SLURM_JOB_ID": "6",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_ID": "1",
    "MPI_LOCALNRANKS": "1",
    "MPI_LOCALRANKID": "0",
    "PMI_RANK": "2",
    "PMI_SIZE": "3",
}

JSRUN = {  # documented: IBM, "Environment variables set for job execution"; Lightning, LSFEnvironment (JSM_*)
    "LSB_JOBID": "123456",
    "LSB_JOBINDEX": "0",
    "LSB_MCPU_HOSTS": "batch2 1 h49n16 42 h50n02 42",
    "LSB_HOSTS": "batch2 h49n16 h50n02",
    "LSB_QUEUE": "batch",
    "JSM_NAMESPACE_RANK": "7",
    "JSM_NAMESPACE_SIZE": "12",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "6",
    "PMIX_NAMESPACE": "1",
    "PMIX_RANK": "7",
}
PALS = {  # documented: ALCF user guides for Aurora and Polaris (PALS_RANKID, PALS_LOCAL_RANKID, PALS_NODEID, PMI_SIZE)
    "PBS_JOBID": "8812.aurora-pbs-0001",
    "PALS_RANKID": "13",
    "PALS_LOCAL_RANKID": "1",
    "PALS_LOCAL_SIZE": "12",
    "PALS_NODEID": "1",
    "PALS_APID": "0d6c7a2e-4d1e-4a7c-9f43-6c9f0f6f0c11",
    "PMI_RANK": "13",
    "PMI_SIZE": "24",
}
FLUX_TASK = {  # documented: flux-environment(7), "Job environment": 8 tasks on 2 nodes
    "FLUX_JOB_ID": "ƒDCB6RV",
    "FLUX_JOB_ID_PATH": "/ƒD2e73NP/ƒDCB6RV",
    "FLUX_JOB_SIZE": "8",
    "FLUX_JOB_NNODES": "2",
    "FLUX_TASK_RANK": "5",
    "FLUX_TASK_LOCAL_ID": "1",
    "FLUX_URI": "local:///tmp/flux-Yq0Bqm/local-1",
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
}
FLUX_BATCH = {  # documented: flux-environment(7), "Initial program environment"
    "FLUX_ENCLOSING_ID": "ƒD2e73NP",
    "FLUX_URI": "local:///tmp/flux-Yq0Bqm/local-0",
}
