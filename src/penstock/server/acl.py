"""What a user of the server needs (`ACL SETUSER`): the rules that docs and error messages publish, in one place.

`-function` keeps a user from replacing or removing the functions of others; `-scan` and the like keep the names of
others' keys and channels from it. `penstock engine install`, run by a user who may, loads the functions.
"""

from typing import Final

#: What would show or change what belongs to others on the server, and of that what Penstock needs.
_LIMITS: Final = (
    "-@dangerous -function -script -scan -randomkey -dbsize -pubsub -client|tracking"
    " +info +time +cluster|slots +pubsub|shardnumsub"
)

#: Everything that apps, workers and operators do.
FULL: Final = f"+@read +@write +@pubsub +@scripting +@transaction +@connection {_LIMITS}"
#: Enqueueing, batches and waiting for results, by the functions alone and with the commands that these use.
PRODUCER: Final = (
    f"+@read +hset +hsetnx +hdel +hincrby +zadd +zrem +xadd +fcall +@pubsub +@transaction +@connection {_LIMITS}"
)
#: Looking at states, lists, events and statistics. Nothing can be changed.
WATCHER: Final = f"+@read +@pubsub +@transaction +@connection {_LIMITS}"


def rule(namespace: str, commands: str = FULL) -> str:
    """The keys, channels and commands of a user of a namespace."""
    keys = "%R~" if commands == WATCHER else "~"
    return f"resetchannels {keys}penstock:{{{namespace}}}:* &penstock:{{{namespace}}}:* {commands}"
