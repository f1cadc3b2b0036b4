"""``uneven bench search`` and ``search-kill``: which settings are worth training, against Ray Tune and Optuna."""
