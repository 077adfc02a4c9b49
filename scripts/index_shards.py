"""Indexes a data set of tar shards, so that a run on many hosts does not read all shards on each of them first.

    python scripts/index_shards.py -data_path=s3://bucket/imagenet -output index.npz
    aws s3 cp index.npz s3://bucket/imagenet/index.npz

The file belongs beside the shards. Without -output it is written there if DATA_PATH is a folder. A shard is read unless
a stored index has its present ETag or time. An interrupted indexing is resumed.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import parse_command_line
from configs.flags import add_flag
from datasets.shards.data_set import TarShards
from datasets.shards.index import INDEX_NAME, encode_index
from datasets.shards.location import parse_location
from datasets.shards.store import is_local
from datasets.sources.source import Wanted
from scripts.flags import new_file, script_parser, split_flags, write_output
from utils.errors import UserError
from utils.processes.entry import run_script


def main(argv: list[str]) -> int:
    usage = "-data_path URL_OR_FOLDER [-output FILE] [-opts KEY=VALUE ...]"  # such as DATA.CACHE_DIR
    parser = script_parser("index_shards.py", usage, "Indexes a data set of tar shards.")
    add_flag(parser, "output", type=new_file, metavar="FILE", help=f"the index (default: {INDEX_NAME} in DATA_PATH)")
    flags, rest = split_flags(parser, argv)
    config = parse_command_line(rest).config
    root, _ = parse_location(config.data.data_path)
    output = flags.output or (Path(root, INDEX_NAME) if is_local(root) else None)
    if output is None:
        raise UserError(f"{root}: is not a folder of this host; give a file with -output, and copy it there")
    shards = TarShards(Wanted(config.data), assume=False)
    write_output(output, encode_index(shards.index))
    for note in shards.notes:
        print(note)
    for split, names in shards.found.splits.items():
        targets = shards.index.arrays["targets"][shards.index.rows_of(set(names))]
        print(f"{split}: {len(names):,} shards, {len(targets):,} images, {(targets >= 0).sum():,} with a label")
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; it belongs beside the shards as {INDEX_NAME}")
    return 0


if __name__ == "__main__":
    run_script(main)
