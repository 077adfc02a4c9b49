"""Several ranks that run one command per list of flags: the processes start once.

python ranks_worker.py RANKS FLAGS    FLAGS: a JSON list of lists of flags
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from utils.processes.launch import exit_with_launcher, launch_processes
from utils.processes.launcher import detect_launcher

if __name__ == "__main__" and detect_launcher():  # a loading worker imports this file, too
    exit_with_launcher()

from configs.reading.command_line import parse_command_line
from engine.commands.run import run
from utils.distributed import process_group


def main(runs: list[list[str]]) -> int:
    with process_group() as context:
        return max(run(parse_command_line(flags), context) for flags in runs)


if __name__ == "__main__":
    ranks, flags = sys.argv[1:]
    sys.exit(main(json.loads(flags)) if detect_launcher() else launch_processes(__file__, sys.argv[1:], int(ranks)))
