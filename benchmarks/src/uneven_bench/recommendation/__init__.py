"""``uneven bench recommendation``: trainers with tables on servers, one process, and DDP with sparse gradients."""
