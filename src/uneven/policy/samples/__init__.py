"""Who trains on which sample: the order of an epoch, leases, requeued samples."""
