"""The assignment of samples to workers: the order of an epoch, leases, requeued samples."""
