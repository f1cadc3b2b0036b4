"""Who is slow in a distributed training, why, and the gain of each remedy, without a change to the script.

``uneven why -- COMMAND`` measures a training that it starts; :func:`attach` measures one from within; :func:`explain`
reads the journal of either, or of any run of uneven.
"""

from typing import TYPE_CHECKING

from uneven.runtime.installed import lazy

if TYPE_CHECKING:
    from uneven.why.explanation import explain
    from uneven.why.pure.findings import Explanation, Remedy, Suspect
    from uneven.why.start import attach

__all__ = ["Explanation", "Remedy", "Suspect", "attach", "explain"]

__getattr__ = lazy(
    __name__,
    {
        "uneven.why.start": ("attach",),
        "uneven.why.explanation": ("explain",),
        "uneven.why.pure.findings": ("Explanation", "Remedy", "Suspect"),
    },
)
