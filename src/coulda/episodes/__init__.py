"""Logged episodes: one ragged in-memory form, validated at the door, and the formats it is read from.

Model files to imitate, in the order in which they import each other: `spaces`, `log` (`EpisodeLog`),
`validation` (the door), then one file per source: `collection`, `files` (our own
format), `tables` with its `cells` and `rows`, `minari`, `arrays`, `recorder`; `behavior` fits missing probabilities;
`formats` tells files apart.
"""

from coulda.episodes.arrays import from_arrays, to_arrays
from coulda.episodes.behavior import fit_behavior
from coulda.episodes.collection import collect, collect_batches
from coulda.episodes.files import StoredLog, open_log, write_log
from coulda.episodes.formats import read_any, write_any
from coulda.episodes.log import EpisodeLog, Schema
from coulda.episodes.minari import read_minari, write_minari
from coulda.episodes.policy_columns import policy_in_frame, policy_in_table
from coulda.episodes.recorder import Recorder
from coulda.episodes.rows import Columns
from coulda.episodes.tables import from_frame, read_table, write_table
from coulda.episodes.validation import LogError, checked_log, from_episodes

__all__ = [
    "Columns",
    "EpisodeLog",
    "LogError",
    "Recorder",
    "Schema",
    "StoredLog",
    "checked_log",
    "collect",
    "collect_batches",
    "fit_behavior",
    "from_arrays",
    "from_episodes",
    "from_frame",
    "open_log",
    "policy_in_frame",
    "policy_in_table",
    "read_any",
    "read_minari",
    "read_table",
    "to_arrays",
    "write_any",
    "write_log",
    "write_minari",
    "write_table",
]
