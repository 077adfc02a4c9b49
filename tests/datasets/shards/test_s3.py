"""S3 and GCS: moto serves both on this machine."""

import logging
import os
import re

import boto3
from conftest import refused
from moto.server import ThreadedMotoServer
from pytest import fixture, mark, raises

from datasets.shards.data_set import find_shards
from datasets.shards.index import Shard
from datasets.shards.store import ShardStore
from utils.errors import Unavailable

pytestmark = mark.slow
DATA = bytes(range(256)) * 400
KEYS = ("data/train/0.tar", "data/train/1 +é#%20.tar", "data/val-0.tar", "data/notes/deep/0.tar", "data/train/x/0.tar")
SECRET = "hunter2"


@fixture(scope="module")
def endpoint():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    account = {"aws_access_key_id": "key", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **account)
    client.create_bucket(Bucket="bucket")
    for key in KEYS:
        client.put_object(Bucket="bucket", Key=key, Body=DATA)
    client.put_object(Bucket="bucket", Key="public/val-0.tar", Body=DATA, ACL="public-read")
    yield f"http://{host}:{port}"
    server.stop()


@fixture
def environment(monkeypatch, endpoint):
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")  # not the endpoint of this machine
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:9")
    return monkeypatch


@fixture
def s3(environment):
    environment.setenv("AWS_ACCESS_KEY_ID", "key")
    environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return store("s3://bucket/data")


def store(root: str, timeout_seconds: float = 4) -> ShardStore:
    return ShardStore(root, timeout_seconds)


def test_bytes_and_names_from_s3(s3):
    names = ["val-0.tar", "train/1 +é#%20.tar"]
    heads = s3.head(names)
    assert [shard[:2] for shard in heads] == [(name, len(DATA)) for name in names]
    for shard in heads:
        assert s3.read_many(shard.name, [(5, 3), (90_000, 100)]) == [DATA[5:8], DATA[90_000:90_100]]
        assert shard.version
        assert b"".join(s3.stream(shard)) == DATA
        s3.check_unchanged(shard)
    with raises(Unavailable, match="has changed"):
        s3.check_unchanged(Shard("val-0.tar", len(DATA), '"other"'))
    assert s3.read_small("missing", 10) is None
    assert find_shards(s3).splits == {"train": ["train/0.tar", "train/1 +é#%20.tar"], "val": ["val-0.tar"]}


@mark.usefixtures("s3")
@mark.parametrize("root", ["s3://bucket/data", "s3://no-bucket/data", "s3://b^cket/data"])
def test_missing_objects_and_buckets(root):
    with raises(Unavailable, match=rf"^{re.escape(root)}[^\n]*$") as error:
        store(root).head(["missing.tar"])
    assert SECRET not in str(error.value)


def test_without_credentials(environment):
    for root, fix in (("s3://bucket/d", "AWS_ACCESS_KEY_ID"), ("gs://bucket/d", "GOOGLE_APPLICATION_CREDENTIALS")):
        with refused(f"credentials.*{fix}.* for a public bucket"):
            store(root, timeout_seconds=0.5).head(["val-0.tar"])
    environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/missing.json")
    with refused(r"gs://bucket/d: .*credentials"):
        store("gs://bucket/d", timeout_seconds=0.5).head(["val-0.tar"])


def test_public_bucket(environment, endpoint):
    environment.setenv("AWS_SKIP_SIGNATURE", "true")
    environment.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    environment.setenv("GOOGLE_BASE_URL", endpoint)
    gcs = store("gs://bucket/public")
    for public in (store("s3://bucket/public"), gcs):
        assert public.read_many("val-0.tar", [(5, 3)])[0] == DATA[5:8]
    assert b"".join(gcs.stream(Shard("val-0.tar", len(DATA)))) == DATA
    assert gcs.list_folder()[0] == ["val-0.tar"]
    with refused(r"s3://bucket/data/val-0\.tar: access is refused"):
        store("s3://bucket/data").read_many("val-0.tar", [(5, 3)])
