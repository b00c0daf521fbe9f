"""Commits to an SQLite database with a journal of its own, and checks it by that.

  database.py make FILE            a database that is as long as it will ever be
  database.py write FILE JOURNAL   commits, until one fails
  database.py check FILE JOURNAL   it is sound, and has every transaction of the journal

FILE and FILE-journal may be disks, which cannot grow or be removed. So the database is made with
free pages, and SQLite keeps its rollback journal: in the exclusive mode it overwrites the header.
Transaction N replaces rows, each by a text of N. The journal has a line for each commit that has
succeeded. While there is a file JOURNAL.pause, no commit is on its way: the file JOURNAL.paused says
so.
"""

import os
import sqlite3
import sys
import time

ROWS = 500
PER_COMMIT = 7


def text(number, row):
    return f"{number} {row} " * (20 + number % 30)


def rows(number):
    return [(number * PER_COMMIT + index) % ROWS for index in range(PER_COMMIT)]


def connect(path):
    database = sqlite3.connect(path, isolation_level=None)
    # Before anything is read: a journal that was left is rolled back, and not removed.
    database.execute("pragma locking_mode=exclusive")
    database.execute("pragma journal_mode=persist")
    database.execute("pragma synchronous=full")
    # Pages go to the disk before the commit, too.
    database.execute("pragma cache_size=20")
    return database


def make(path):
    database = connect(path)
    database.execute("pragma page_size=4096")
    database.execute("create table last(number)")
    database.execute("insert into last values(0)")
    database.execute("create table data(row integer primary key, number, text)")
    database.execute("create table room(bytes)")
    database.execute("insert into room values(zeroblob(2000000))")
    database.execute("drop table room")


def pause_if_asked(journal):
    if os.path.exists(f"{journal}.pause"):
        open(f"{journal}.paused", "w").close()
        while os.path.exists(f"{journal}.pause"):
            time.sleep(0.02)


def write(path, journal):
    database = connect(path)
    number = database.execute("select number from last").fetchone()[0]
    with open(journal, "a", buffering=1) as file:
        try:
            while True:
                pause_if_asked(journal)
                number += 1
                database.execute("begin immediate")
                for row in rows(number):
                    new = (row, number, text(number, row))
                    database.execute("replace into data values(?, ?, ?)", new)
                database.execute("update last set number = ?", (number,))
                database.execute("commit")
                file.write(f"{number}\n")
        except sqlite3.OperationalError as error:
            print(f"{number} transactions: {error}", flush=True)
    # The disk fails: nothing of the database is closed.
    os._exit(0)


def check(path, journal):
    with open(journal) as file:
        least = int(file.read().split()[-1])
    database = connect(path)
    (answer,) = database.execute("pragma integrity_check").fetchone()
    if answer != "ok":
        sys.exit(f"integrity_check: {answer}")
    (last,) = database.execute("select number from last").fetchone()
    if not least <= last <= least + 1:
        sys.exit(f"found transaction {last}, expected {least}, or the one that was on its way")
    expected = {}
    for number in range(1, last + 1):
        expected.update({row: (number, text(number, row)) for row in rows(number)})
    found = {row: (number, words) for row, number, words in database.execute("select * from data")}
    if found != expected:
        differ = [row for row in range(ROWS) if found.get(row) != expected.get(row)]
        sys.exit(f"rows {differ[:10]} differ from those of transaction {last}")
    print(f"{least} transactions are in the database")


def main():
    verb, *paths = sys.argv[1:]
    {"make": make, "write": write, "check": check}[verb](*paths)


main()
