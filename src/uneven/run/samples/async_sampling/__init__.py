"""The state shared by workers that take samples asynchronously: sample counter, evaluation barrier, shutdown."""
