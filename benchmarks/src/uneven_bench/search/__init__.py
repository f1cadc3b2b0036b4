"""``uneven bench search`` and ``search-kill``: the choice of settings worth training, against Ray Tune and Optuna."""
