"""A tar file of a data set, and the comparison with the file that was indexed."""

from typing import NamedTuple

LOCAL_VERSION = "mtime-"  # begins the `version` of a local file


class Shard(NamedTuple):
    """A tar file.

    name: its path relative to the location of the data set, such as 'train-000001.tar'.
    num_bytes: its size.
    version: its ETag, or for a local file `LOCAL_VERSION` and the time of its last change in ns; None if unknown.
    is_assumed: whether the index was made without this version, so that the shard may be newer than its rows.
    """

    name: str
    num_bytes: int
    version: str | None = None
    is_assumed: bool = False

    def is_same_as(self, other: "Shard") -> bool:
        """Tells whether both have one size and, where both know it, one version.

        A local version and an ETag cannot be compared: shards may be uploaded with their index.
        """
        if (self.name, self.num_bytes) != (other.name, other.num_bytes):
            return False
        return self.version == other.version or not self.is_comparable_with(other)

    def is_comparable_with(self, other: "Shard") -> bool:
        """Tells whether both know a version, and of the same kind."""
        if self.version is None or other.version is None:
            return False
        return self.version.startswith(LOCAL_VERSION) == other.version.startswith(LOCAL_VERSION)
