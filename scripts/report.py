"""Writes the page of a run, or a page that compares runs.

    python scripts/report.py output/vit_digits-20260101-12-00     # writes report.html in that folder
    python scripts/report.py output/*                             # writes output/compare.html

The folders are those of runs that trained or evaluated (-eval). A page is one HTML file that needs no network.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.reading.flags import Parser
from engine.report import REPORT
from engine.report.contents import read_contents
from engine.report.page import COMPARISON, run_page, write_comparison
from utils.atomic_file import atomic_write
from utils.entry import run_and_report_errors
from utils.errors import UserError, escape_control_characters


def main(argv: list[str]) -> int:
    flags = _parser().parse_args(argv)
    folders = [path for path in flags.folders if not path.is_file()]  # output/* has compare.png
    if not folders:
        raise UserError(f"{flags.folders[0]}: is a file; give the folders of runs, such as output/*")
    first = folders[0]
    problems = []
    page = flags.output or (first / REPORT if len(folders) == 1 else first.absolute().parent / COMPARISON)
    try:
        if len(folders) == 1:
            atomic_write(page, run_page(read_contents(first)))
        else:
            problems = write_comparison(folders, page)
    except OSError as error:
        raise UserError(f"{page}: cannot be written ({error.strerror}); give another file with -output") from None
    for problem in problems:
        print(escape_control_characters(problem), file=sys.stderr)
    print(f"Page: {escape_control_characters(str(page))}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="scripts/report.py",
        usage="%(prog)s RUN [RUN ...] [-output FILE]",
        description="Writes the page of a run, or a page that compares runs.",
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    output = "HTML file to write (default: report.html in the run's folder, compare.html beside several runs)"
    parser.add_argument("-output", "--output", type=Path, metavar="FILE", help=output)
    return parser


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
