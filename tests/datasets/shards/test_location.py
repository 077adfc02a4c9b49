import pytest

from datasets.shards.location import is_local, parse_location
from utils.errors import UserError


@pytest.mark.parametrize(
    ("data_path", "root", "names"),
    [
        ("/data/in1k/", "/data/in1k", None),
        ("https://host:80/d/", "https://host:80/d", None),
        ("S3://bucket", "s3://bucket", None),
        ("a.tar", ".", ["a.tar"]),
        ("/a.tar", "/", ["a.tar"]),
        ("gs://bucket/d/a.tar", "gs://bucket/d", ["a.tar"]),
        ("/d/{train,val}/{08..10}.tar", "/d", [f"{s}/{n}.tar" for s in ("train", "val") for n in ("08", "09", "10")]),
        ("https://host/my%20d/a%20{1..2}.tar", "https://host/my%20d", ["a 1.tar", "a 2.tar"]),
        ("s3://bucket/x/t-{0..4..2}.tar", "s3://bucket/x", ["t-0.tar", "t-2.tar", "t-4.tar"]),
        ("{a,b{1..2}}.tar", ".", ["a.tar", "b1.tar", "b2.tar"]),
    ],
)
def test_location(data_path, root, names):
    assert parse_location(data_path) == (root, names)
    assert is_local(root) == ("://" not in root)


def test_existing_folder_is_no_pattern(tmp_path):
    for name in ("{a,b}", "set.tar"):
        (tmp_path / name).mkdir()
        assert parse_location(f"{tmp_path}/{name}") == (f"{tmp_path}/{name}", None)


@pytest.mark.parametrize(
    ("data_path", "problem"),
    [
        ("pipe:curl https://host/a.tar", "shell command"),
        ("ftp://host/d", "'ftp'"),
        ("file:///d", "'file'"),
        ("https://me:hunter2@host/d", "user or password"),
        ("https://host/a.tar?token=hunter2", "without a query"),
        *((f"{url}/d", "not a valid URL") for url in ("https://host:99999", "https://[::1", "https://h{0..3}", "s3://b/..")),
        ("/d/a.tar.gz", "compressed"),
        ("https://host/{0..3}.tgz", "compressed"),
        ("/d/{a,b", "not balanced"),
        (f"/d/{{{'9' * 5000}..1}}.tar", "not balanced"),
        (f"/d/{{{'9' * 2000}..1}}.tar", "1,000,000"),
        ("/d/{0..99999999999}.tar", "1,000,000"),
        ("/d/{1..2}", ".tar"),
        ("/d/{a,../b}.tar", "'../b.tar'"),
        ("/d/{a,a}.tar", "twice"),
        ("/d/{a,\x1b}.tar", "control characters"),
    ],
)  # fmt: skip
def test_one_line_for_what_is_not_supported(data_path, problem):
    with pytest.raises(UserError) as error:
        parse_location(data_path)
    assert problem in str(error.value) and "\n" not in str(error.value)
    assert "hunter2" not in str(error.value)


def test_a_pattern_has_a_bounded_number_of_names(monkeypatch):
    monkeypatch.setattr("datasets.shards.location.MAX_NAMES", 10)
    assert len(parse_location("/d/{a,b}{0..4}.tar")[1]) == 10
    for pattern in ("{a,b{0..4}}{0..2}", "{a..k}", "{{0..4},{5..9},x}", "{0..22..2}{,}", "{-5..5}"):
        with pytest.raises(UserError, match="more than 10 names"):
            parse_location(f"/d/{pattern}.tar")
    monkeypatch.setattr("datasets.shards.location.braceexpand", None)  # not called
    with pytest.raises(UserError, match="more than 10 names"):
        parse_location("/d/{" + ",".join(["{0..9}"] * 80) + "}.tar")
