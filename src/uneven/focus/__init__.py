"""Find objects in recorded video: cheap at ingest, exact at query (Focus, OSDI 2018).

::

    from uneven import focus

    index = focus.ingest("cam1.mp4", truth=my_expensive_network, recall=0.99, precision=0.99, policy="balance")
    for hit in index.query("car", between=("08:00", "09:00")):
        print(hit.time_s, hit.box, hit.confidence)

::

    video.py ─► background_subtraction.py ─► networks.py ─► pure/clusters.py ─► index.py
    frames      boxes                        a cheap one    incremental         SQLite, crops

    ingest_stream.py  runs these in threads
    start.py          chooses the settings (tune.py samples and trains, pure/sweep.py chooses); supervise.py starts a
                      process for each stream, and pure/cameras.py assigns streams to machines
    query.py          classes → clusters → truth network on centroids → frames

A name is imported at its first use. The extra ``focus`` installs the video reader.
"""

from typing import TYPE_CHECKING

from uneven.runtime.installed import lazy, need

if TYPE_CHECKING:
    from uneven.focus.background_subtraction import Moving, MovingOptions
    from uneven.focus.drift import Drift, drifted
    from uneven.focus.ingest_stream import IngestOptions
    from uneven.focus.networks import LadderRung
    from uneven.focus.pure.cameras import place
    from uneven.focus.pure.clusters import Clusters
    from uneven.focus.pure.sweep import Policy, SweepGrid
    from uneven.focus.query import Embedding, Hit, VideoIndex
    from uneven.focus.sprites import Sprites
    from uneven.focus.start import Update, ingest, load_index, retune
    from uneven.focus.truth import Truth
    from uneven.focus.tune import Wanted
    from uneven.focus.video import Frame, Video, VideoSource

__all__ = [
    "Clusters",
    "Drift",
    "Embedding",
    "Frame",
    "Hit",
    "IngestOptions",
    "LadderRung",
    "Moving",
    "MovingOptions",
    "Policy",
    "Sprites",
    "SweepGrid",
    "Truth",
    "Update",
    "Video",
    "VideoIndex",
    "VideoSource",
    "Wanted",
    "drifted",
    "ingest",
    "load_index",
    "place",
    "retune",
]

_HOMES = {
    "uneven.focus.start": ("Update", "ingest", "load_index", "retune"),
    "uneven.focus.pure.cameras": ("place",),
    "uneven.focus.pure.clusters": ("Clusters",),
    "uneven.focus.drift": ("Drift", "drifted"),
    "uneven.focus.ingest_stream": ("IngestOptions",),
    "uneven.focus.background_subtraction": ("Moving", "MovingOptions"),
    "uneven.focus.networks": ("LadderRung",),
    "uneven.focus.query": ("Embedding", "Hit", "VideoIndex"),
    "uneven.focus.sprites": ("Sprites",),
    "uneven.focus.pure.sweep": ("SweepGrid", "Policy"),
    "uneven.focus.truth": ("Truth",),
    "uneven.focus.tune": ("Wanted",),
    "uneven.focus.video": ("Frame", "VideoSource", "Video"),
}
need("focus", "av", "scipy")
__getattr__ = lazy(__name__, _HOMES)
