"""The balancer ``model``: each worker's cost, learnt while it works. It has its name wherever this distribution is."""
