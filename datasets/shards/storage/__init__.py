"""The bytes of shards: a folder, a web server, S3 or GCS; the cache on this host."""
