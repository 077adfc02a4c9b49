"""One rank of a `RankPool`: calls the functions that it receives until the pool closes the connection.

python tests/rank.py CONNECTION    CONNECTION: the number of an open file
"""

import pickle
import sys
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from utils.processes.launch import exit_with_launcher

if __name__ == "__main__":  # a loading worker imports this file, too
    exit_with_launcher()

from configs.command_line import parse_command_line
from utils.distributed import ProcessContext, process_group


def run_commands(context: ProcessContext, commands: list[list[str]]):
    from engine.commands.run import run  # imported late: pytest's own process runs no test

    for flags in commands:
        assert run(parse_command_line(flags), context) == 0, flags


def main(connection: Connection):
    with process_group() as context:
        while True:
            try:
                sys.path[:], call = pickle.loads(connection.recv_bytes())
            except EOFError:
                return
            function, arguments = pickle.loads(call)
            connection.send_bytes(pickle.dumps(function(context, *arguments)))


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
