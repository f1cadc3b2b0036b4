"""``uneven bench worlds --case outside``: the simulator against measurements that others have published."""
