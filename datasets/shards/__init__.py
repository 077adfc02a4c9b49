"""Tar shards in a folder, on a web server, in S3 or GCS: an index, ranges of bytes, a cache on each host."""
