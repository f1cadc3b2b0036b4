"""What workers share that take samples at their own pace: a counter of samples, a barrier, and how they end."""
