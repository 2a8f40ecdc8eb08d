"""Templates for GPUs: loops over blocks and threads, shared memory, barriers."""
