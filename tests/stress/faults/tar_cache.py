"""Faults of the data set tar with several processes and a cache, and in S3."""

import logging
import signal
from collections import Counter

from faults.processes import MULTI, Running
from faults.runner import Fault, finished
from faults.scene import Scene, Skipped, in_namespace, require_mounts
from faults.tar import data_of, secret_is_kept, tar_flags
from faults.tar_served import CACHE, LONG, Check, all_of, is_equal, resumed, served

from tests.datasets.shards.range_server import SECRET, RangeHandler, body


def _downloads(most: int, least: int = 1) -> Check:
    """Counts the requests of each whole training shard."""

    def check(scene: Scene) -> list[str]:
        whole = Counter(path for method, path, part in scene.server.requests if method == "GET" and not part)
        counts = [whole[f"/train-{number:04d}.tar"] for number in range(6)]
        return [] if min(counts) >= least and max(counts) <= most else [f"the shards were downloaded {counts} times"]

    return check


def _nothing_left(scene: Scene) -> list[str]:
    return [f"is left: {path.name}" for path in (scene.folder / "cache").rglob("*.part")]


def slow_downloads(handler: RangeHandler) -> None:
    """Whole shards arrive slowly; the index and ranges of shards at once."""
    is_whole_shard = handler.path.endswith(".tar") and not handler.headers.get("Range")
    body(pause_seconds=10.0 if is_whole_shard else 0.0)(handler)


def cache_faults() -> list[Fault]:
    def on_small_disk(scene: Scene) -> list[str]:
        require_mounts()
        (scene.folder / "cache").mkdir()
        return served(CACHE, indexed=False)(scene)

    def killed(running: Running) -> None:
        running.wait_for("Epoch[002")
        if not list((running.scene.folder / "cache").rglob("*.part")):
            raise TimeoutError("nothing was being downloaded")
        running.send(signal.SIGKILL, *running.ranks(), running.process.pid)

    def disk(size: str) -> str:
        return in_namespace(f"mount -t tmpfs -o size={size} tmpfs cache")

    two_runs = '"$@" & first=$!; "$@"; status=$?; wait $first && exit $status'
    once = all_of(is_equal(runs=2), _downloads(most=1))
    by_ranks = {"script": MULTI, "check": all_of(is_equal(ranks=2), _downloads(most=1), _nothing_left)}
    no_room, not_written = r"no room for more shards .*DATA\.CACHE_GB", r"cannot be written \(No space left"
    killed_ranks = served(CACHE, flags=("-ngpus=2",), answer=slow_downloads)
    resumes = all_of(resumed(2, CACHE), _nothing_left)
    return [
        finished("tar cache: a small disk", on_small_disk, shell=disk("16m"), prints=no_room, check=is_equal()),
        finished("tar cache: a full disk", on_small_disk, shell=disk("4k"), prints=not_written, check=is_equal()),
        finished("tar cache: two runs", served(CACHE), shell=two_runs, check=all_of(once, _nothing_left)),
        finished("tar cache: two ranks", served(CACHE, flags=("-ngpus=2",)), **by_ranks),
        Fault("tar cache: ranks killed in a download", killed_ranks, None, (137,), MULTI, act=killed, check=resumes),
    ]


def bucket_faults() -> list[Fault]:
    def in_bucket(scene: Scene) -> list[str]:
        try:
            import boto3
            from moto.server import ThreadedMotoServer
        except ImportError:
            raise Skipped("moto[s3,server] is not installed") from None
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        scene.resources.callback(server.stop)
        host, port = server.get_host_and_port()
        scene.write("endpoint", f"http://{host}:{port}")
        account = {"aws_access_key_id": "key", "aws_secret_access_key": "key", "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **account)
        client.create_bucket(Bucket="bucket")
        for path in data_of(scene).glob("*.tar"):
            client.put_object(Bucket="bucket", Key=f"data/{path.name}", Body=path.read_bytes())
        return tar_flags(scene, "s3://bucket/data", *LONG)

    with_keys = (
        "export AWS_ENDPOINT_URL=$(cat endpoint) AWS_REGION=us-east-1 AWS_ACCESS_KEY_ID=key "
        f"AWS_SECRET_ACCESS_KEY={SECRET}; {{}}"
    )
    return [finished("tar in S3: a run", in_bucket, shell=with_keys, check=all_of(is_equal(), secret_is_kept))]
