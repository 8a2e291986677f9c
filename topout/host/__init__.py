"""One host: its cores, memory, GPUs and network interfaces, read from the kernel; and which rank gets what of them."""
