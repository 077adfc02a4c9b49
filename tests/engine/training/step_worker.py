"""One rank of test_step.py: trains once per list of flags.

python step_worker.py RANKS FLAGS    FLAGS: a JSON list of lists of flags
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from utils.launch import detect_launcher, exit_with_launcher, launch_processes

if detect_launcher():
    exit_with_launcher()

from configs.command_line import parse_command_line
from engine.commands.run import run
from utils.distributed import process_group


def main(runs: list[list[str]]) -> int:
    with process_group() as context:
        return max(run(parse_command_line(flags), context) for flags in runs)


if __name__ == "__main__":
    ranks, flags = sys.argv[1:]
    sys.exit(main(json.loads(flags)) if detect_launcher() else launch_processes(__file__, sys.argv[1:], int(ranks)))
