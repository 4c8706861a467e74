"""Cost of kernel launches on this host, alone and with other ranks, without GPU and profiler."""
