"""How contributions become one: arithmetic on flat vectors, without any communication."""

from uneven.merge.rules import Block, mean, pull, significant

__all__ = ["Block", "mean", "pull", "significant"]
