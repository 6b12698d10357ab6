"""Prints the parity table at the end of a session that ran some of it."""

import sys


def pytest_terminal_summary(terminalreporter):
    table = sys.modules.get("parity_rows")
    if table is None or not table.RESULTS.rows:
        return
    terminalreporter.section("parity: largest errors against one process")
    for line in table.summary_lines(table.RESULTS.rows):
        terminalreporter.write_line(line)
