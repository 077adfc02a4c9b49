import shutil
import ssl
import subprocess

from conftest import each_value, line_of, refused
from pytest import fixture, mark, raises

import datasets.shards.store
from datasets.shards.index import Shard
from datasets.shards.store import ShardStore
from tests.datasets.shards.range_server import SECRET, body, etag, no_answer, range_server, status
from utils.errors import Unavailable

DATA = bytes(range(256)) * 4000
NAME = "train/a b#é%20.tar"  # characters that a URL must escape


@fixture
def server(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / NAME).write_bytes(DATA)
    with range_server(tmp_path) as server:
        yield server


@fixture
def store(server):
    return ShardStore(server.url, timeout_seconds=2)


def read(store: ShardStore, start: int, length: int) -> bytes:
    return store.read_many(NAME, [(start, length)])[0]


def whole(store: ShardStore, **state) -> bytes:
    return b"".join(store.stream(Shard(NAME, len(DATA))._replace(**state)))


@mark.parametrize("is_local", [True, False])
def test_bytes_of_files(server, is_local):
    path = server.folder / NAME
    store = ShardStore(str(server.folder) if is_local else server.url, timeout_seconds=2)
    version = f"mtime-{path.stat().st_mtime_ns}" if is_local else etag(path)
    shard = Shard(NAME, len(DATA), version)
    assert store.head([NAME, NAME]) == [shard, shard]
    assert whole(store) == whole(store, version=version) == DATA
    assert store.read_small(NAME, len(DATA)) == DATA
    assert store.read_small("missing.json", 10) is None
    assert store.list_folder("train")[0] == [NAME] if is_local else not store.files.can_list
    store.check_unchanged(shard)
    with raises(Unavailable, match="is larger than 10 bytes"):
        store.read_small(NAME, 10)
    assert "missing.tar: does not exist" in line_of(store.head, [NAME, "missing.tar"])
    for other in ({"version": "mtime-1" if is_local else '"x"'}, {"num_bytes": 5}):
        for call in (whole, lambda store, **state: store.check_unchanged(shard._replace(**state))):
            with raises(Unavailable, match="has changed since it was indexed"):
                call(store, **other)


def test_ranges_of_files(store):
    ranges = [(start, 7) for start in range(0, len(DATA), 5000)] + [(3, 0)]
    assert store.read_many(NAME, ranges) == [DATA[start : start + length] for start, length in ranges]
    for start in (len(DATA) - 3, len(DATA) + 3):
        with refused("has changed"):
            read(store, start, 5)


TEMPORARY = {"503": status(503), "429": status(429), "cut short": body(sent=500), "reset": body(sent=500, reset=True)}


@mark.parametrize("fault", TEMPORARY.values(), ids=TEMPORARY)
def test_temporary_faults_are_invisible(server, store, fault):
    for call in (
        lambda: read(store, 10, 5000) == DATA[10:5010],
        lambda: whole(store, version=etag(server.folder / NAME), num_bytes=len(DATA)) == DATA,
        lambda: store.read_small(NAME, 2 * len(DATA)) == DATA,
    ):
        server.fail(fault)
        assert call()
        assert len(server.requests) > 1


def test_interrupted_stream_resumes_where_it_was(server, store):
    server.fail(*[body(sent=300_000)] * 3)  # no reset: it may discard bytes that were not read yet
    assert whole(store) == DATA
    assert server.requests[-1][2].startswith("bytes=")


def test_stream_of_a_file_that_changes_meanwhile(server, store):
    """obstore requests the rest of an interrupted answer, and finds another file."""
    server.fail(body(sent=300_000))
    stream = store.stream(Shard(NAME, len(DATA)))
    read = len(next(stream))
    (server.folder / NAME).write_bytes(DATA[::-1])
    with refused("has changed since it was indexed"):
        while True:
            read += len(next(stream))
    assert read <= 300_000


PERMANENT = {
    "does not exist": status(404), "access is refused": status(403), "needs credentials": status(401),
    "status 400": status(400), "redirects without end": status(302, Location=f"/x?signature={SECRET}"),
}  # fmt: skip
LASTING = {
    "status 503": status(503),
    "cannot be reached": status(302, Location=f"http://127.0.0.1:9/x?signature={SECRET}"),
    "the server cannot be reached": body(sent=0, reset=True),
    ": the server cannot be reached": no_answer,
}


@mark.parametrize("problem", [*PERMANENT, *LASTING])
def test_one_line_without_secrets_at_once_or_after_attempts(server, problem):
    store = ShardStore(server.url, timeout_seconds=1)
    calls = (lambda: read(store, 0, 5), lambda: whole(store), lambda: store.head([NAME]))
    for call in calls if problem in PERMANENT else calls[:1]:
        server.fail_always((PERMANENT | LASTING)[problem])
        with raises(Unavailable, match=rf"^{server.url}/{NAME}[^\n]*{problem}[^\n]*$") as error:
            call()
        assert SECRET not in str(error.value)
        assert (" s of attempts" in str(error.value)) == (problem in LASTING)


@each_value("""
answer | code                         | words
403    | AccessDenied                 | access is refused
401    | Unauthorized                 | access is refused
403    | InvalidAccessKeyId           | AWS_ACCESS_KEY_ID
403    | SignatureDoesNotMatch        | AWS_SECRET_ACCESS_KEY
403    | RequestTimeTooSkewed         | the clock of this host
400    | ExpiredToken                 | AWS_SESSION_TOKEN
400    | InvalidToken                 | AWS_SESSION_TOKEN
400    | AuthorizationHeaderMalformed | AWS_REGION
301    | PermanentRedirect            | AWS_REGION
404    | NoSuchBucket                 | the bucket does not exist
404    | Other                        | does not exist
501    | NotImplemented               | status 501
""")
def test_each_code_of_a_bucket_has_its_line_at_once(server, monkeypatch, answer, code, words):
    """A HEAD has no body: a GET of one byte asks for the code."""
    for name, value in {"ENDPOINT_URL": server.url, "ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": SECRET}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    store = ShardStore("s3://bucket/data", timeout_seconds=60)
    server.fail_always(status(answer, f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>"))
    for call in (store.list_folder, lambda: read(store, 0, 5), lambda: store.head([NAME])):
        with raises(Unavailable, match=rf"^s3://bucket/data/[^\n]*{words}[^\n]*$") as error:
            call()
        assert SECRET not in str(error.value)
        assert " s of attempts" not in str(error.value)


@mark.parametrize("code", [403, 405, 501])
def test_a_server_that_refuses_head_sends_one_byte(server, store, code):
    (expected,) = store.head([NAME])
    server.fail(status(code))
    assert store.head([NAME]) == [expected]
    assert expected.num_bytes == len(DATA)
    assert expected.version
    assert [(method, part) for method, _, part in server.requests] == [("HEAD", None), ("GET", "bytes=0-0")]


@mark.skipif(not shutil.which("openssl"), reason="makes the certificate")
def test_a_server_that_signed_its_own_certificate_is_refused_at_once_with_the_variable_that_trusts_it(
    server, tmp_path, monkeypatch
):
    """Who reads from a machine of the own network waited for 48 s, and was sent to check the network."""
    key = tmp_path / "key.pem"
    certificate = tmp_path / "certificate.pem"
    extensions = "-addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -subj /CN=x {extensions}"
    subprocess.run(command.split(), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    store = ShardStore(server.url.replace("http", "https"), timeout_seconds=60)
    with refused(f"{NAME}: its TLS certificate is not valid; .*SSL_CERT_FILE$"):
        store.head([NAME])
    assert not server.requests
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert ShardStore(store.root, timeout_seconds=60).head([NAME])[0].num_bytes == len(DATA)


def test_the_cause_of_an_unknown_host_is_told_while_the_run_waits_and_at_its_end(monkeypatch, capfd):
    """A name server may be away for a while; who misspelt the host must not wait for a minute without a word."""
    monkeypatch.setattr(datasets.shards.store, "_SILENT_SECONDS", 0.2)
    monkeypatch.setattr(datasets.shards.store, "_told_at", -1e9)
    store = ShardStore("http://no-such-host.invalid/x", timeout_seconds=1)
    with refused(r"a\.tar: the host is not found, after [1-9] s of attempts; check "):
        store.head(["a.tar", "b.tar"])
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("----- http://no-such-host.invalid/x/")
    assert line.endswith(".tar: the host is not found; the run waits")
