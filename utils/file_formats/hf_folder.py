"""Models as timm and transformers save them: config.json and weights, in a folder or on the Hugging Face Hub."""

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open

from utils.errors import Unavailable, UserError, first_line
from utils.files import expand_home, read_json, without_none
from utils.threads import DaemonPool

HUB = ("hf-hub:", "hf:", "hf_hub:")
LOCAL = "local-dir:"  # prefixes of a model name; timm's but for the short one
CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
SHARDS = "model.safetensors.index.json"  # of transformers: the names of several files of weights
# of transformers; a key: images are BGR
PREPROCESSOR = "preprocessor_config.json"
FLIPS = "do_flip_channel_order"
PROCESSOR = "processor_config.json"  # of transformers 5: the former is its `image_processor`
ANSWER_SECONDS = 6.0  # huggingface_hub itself retries for a minute, and longer if a firewall drops its packets


def model_folder(source: str, flag: str, with_weights: bool = False) -> Path:
    """The folder of `hf:ORG/NAME[@REVISION]`, with config.json, or of `local-dir:FOLDER`; else `source` itself.

    flag: reads a folder that was downloaded by hand.
    """
    if not source.startswith(HUB):
        return Path(expand_home(source.removeprefix(LOCAL)))
    repository = source.partition(":")[2]
    fix = f"download the repository by hand, and give {flag}"
    folder = download(repository, (CONFIG,), fix).parent
    same_commit = f"{repository.partition('@')[0]}@{folder.name}"
    of_timm = is_of_timm(read_json(folder / CONFIG))
    if not of_timm:
        for name in (PREPROCESSOR, PROCESSOR):
            download(same_commit, (name, CONFIG), fix)  # it may be missing
    if with_weights:
        file = download(same_commit, _weight_names(of_timm), fix)
        names = read_json(file).get("weight_map") if file.name == SHARDS else None
        for name in sorted(set(names.values())) if isinstance(names, dict) else ():
            download(same_commit, (name,), fix)
    return folder


def weight_file(source: str) -> str:
    """The weights in a folder with config.json, here or on the Hub; another path is unchanged.

    Raises UserError as `read_config` and `download`, and if the folder has no weights; of transformers, safetensors.
    """
    folder = model_folder(source, "-pretrained=FOLDER", with_weights=True)
    if not os.path.isfile(folder / CONFIG):
        return source
    names = _weight_names(is_of_timm(read_config(folder)))
    if found := next(filter(os.path.isfile, (folder / name for name in names)), None):
        return str(found)
    raise UserError(
        f"{folder}: has {CONFIG}, but no {' or '.join(names)}; "
        "add them; from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers makes them of a pytorch_model.bin"
    )


def _weight_names(of_timm: bool) -> tuple[str, ...]:
    return WEIGHTS if of_timm else (WEIGHTS[0], SHARDS)


def is_of_timm(config: dict[str, Any]) -> bool:
    return "model_type" not in config or isinstance(config.get("architecture"), str)


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json; in timm's old form, the entry `pretrained_cfg` is the content.

    Of transformers, with the order of channels in its preprocessor's file. Raises UserError: the file is missing or
    damaged, or describes no model.
    """
    content = read_json(folder / CONFIG)
    if not is_of_timm(content):
        nested = read_json(folder / PROCESSOR).get("image_processor")
        processor = nested if isinstance(nested, dict) else read_json(folder / PREPROCESSOR)
        flips = processor.get(FLIPS, str(content["model_type"]).startswith("mobilevit"))
        return content | ({FLIPS: True} if flips else {})
    stated = without_none(content)  # transformers' TimmWrapper has null
    config = {"pretrained_cfg": content, "model_args": {}, "architecture": None} | stated
    types = {"pretrained_cfg": dict, "model_args": dict, "architecture": str}
    if not all(isinstance(config[name], kind) for name, kind in types.items()):
        problem = "is damaged, or names no architecture of timm's" if os.path.isfile(folder / CONFIG) else "is missing"
        raise UserError(f"{folder / CONFIG}: {problem}; give a folder that timm's save_for_hf or export.py wrote")
    return config


@functools.cache
def download(repository: str, names: tuple[str, ...], fix: str) -> Path:
    """The first of the files that the repository ORG/NAME[@REVISION] has; one in the Hub's cache needs no request.

    Raises Unavailable: the Hub does not answer in time, or has no such file; names its address, and `fix`.
    """
    import huggingface_hub as hub  # 0.3 s
    from huggingface_hub.constants import ENDPOINT

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # each failed attempt is a warning
    name, _, tag = repository.partition("@")
    revision = tag or "main"
    pool = DaemonPool(1)
    exists = partial(hub.file_exists, name, revision=revision)
    with explained(f"{ENDPOINT}/{name}/resolve/{revision}/{names[0]}", fix):
        for file in names:
            cached = hub.try_to_load_from_cache(name, file, revision=revision)
            if isinstance(cached, str):
                return Path(cached)
        found = pool.submit(lambda: next(filter(exists, names), names[0]))
        file = found.result(ANSWER_SECONDS)  # the library's own limit is for each address of the server
        return Path(hub.hf_hub_download(name, file, revision=revision))


def find_on_hub(repository: str, names: tuple[str, ...], limit_seconds: float = 3.0) -> str | None:
    """Where one of the files is: 'in the cache', or 'on the Hub' if that answers within the limit; else None."""
    import huggingface_hub as hub

    if any(isinstance(hub.try_to_load_from_cache(repository, name), str) for name in names):
        return "in the cache"
    pool = DaemonPool(1)
    with suppress(Exception):  # of many types
        if pool.submit(lambda: any(hub.file_exists(repository, name) for name in names)).result(limit_seconds):
            return "on the Hub"
    return None


@contextmanager
def explained(url: str, fix: str) -> Iterator[None]:
    """Converts the exceptions of a download into one line."""
    try:
        yield
    except Exception as error:  # of many types: of the libraries for HTTP, too
        reason = f"no answer in {ANSWER_SECONDS:g} s" if isinstance(error, TimeoutError) else first_line(error)
        raise Unavailable(f"{url}: cannot be downloaded ({reason}); {fix}") from error


def read_metadata(path: Path | str) -> dict[str, str]:
    """The metadata, without reading a tensor; empty if the file has none, or is damaged or of another format."""
    with suppress(Exception), safe_open(path, framework="numpy") as file:  # almost any type, for a damaged file
        return file.metadata() or {}
    return {}
