"""Writes through NBD with a journal, and checks another export by it.

  journal.py write SOCKET EXPORT JOURNAL BLOCKS   until a request fails; then ten more must fail
  journal.py check SOCKET EXPORT JOURNAL BLOCKS   blocks hold what was flushed, or later writes

A block is 4096 bytes that repeat the number of the write. The journal has a line for each write
before it is sent ("s NUMBER BLOCK") and when it has succeeded ("a NUMBER"). "d NUMBER" is a write
with FUA that has succeeded. "f" is a flush that has succeeded: it covers what has succeeded before
it in the same connection, which begins at "b". A write that succeeds after one has failed is an
error. While there is a file JOURNAL.pause, the writer sends nothing and has nothing on its way: it
says so by the file JOURNAL.paused.
"""

import os
import random
import socket
import struct
import sys
import time

BLOCK = 4096
READ, WRITE, FLUSH = 0, 1, 3
FUA = 1


class Export:
    def __init__(self, path, name):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.receive(16)
        self.receive(2)
        name = name.encode()
        option = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
        head = struct.pack(">I8sII", 3, b"IHAVEOPT", 7, len(option))
        self.socket.sendall(head + option)
        while True:
            _, _, kind, length = struct.unpack(">QIII", self.receive(20))
            self.receive(length)
            if kind == 1:
                return
            if kind >= 1 << 31:
                sys.exit(f"no export {name}: {kind:#x}")

    def receive(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionError("the server has hung up")
            data += more
        return data

    def ask(self, kind, block=0, data=b"", flags=0, length=0):
        """The error number, and what was read."""
        length = length or len(data)
        head = struct.pack(">IHHQQI", 0x25609513, flags, kind, 1, block * BLOCK, length)
        self.socket.sendall(head + data)
        _, error, _ = struct.unpack(">IIQ", self.receive(16))
        return error, self.receive(length) if kind == READ and not error else b""


def filled(number):
    return struct.pack("<Q", number) * (BLOCK // 8)


def lines(journal):
    try:
        with open(journal, encoding="ascii") as file:
            return [line.split() for line in file]
    except FileNotFoundError:
        return []


def pause_if_asked(journal):
    if os.path.exists(f"{journal}.pause"):
        open(f"{journal}.paused", "w").close()
        while os.path.exists(f"{journal}.pause"):
            time.sleep(0.02)


def write(export, journal, blocks):
    number = max((int(line[1]) for line in lines(journal) if line[0] == "s"), default=0)
    with open(journal, "a", encoding="ascii", buffering=1) as file:
        file.write("b\n")
        failed = 0
        while failed < 10:
            pause_if_asked(journal)
            number += 1
            block, is_fua = random.randrange(blocks), random.random() < 0.1
            file.write(f"s {number} {block}\n")
            error, _ = export.ask(WRITE, block, filled(number), FUA if is_fua else 0)
            if not error and failed:
                sys.exit(f"write {number} succeeded after one had failed")
            if not error:
                file.write(f"{'d' if is_fua else 'a'} {number}\n")
            if not error and random.random() < 0.2:
                error, _ = export.ask(FLUSH)
                if not error:
                    file.write("f\n")
            failed += bool(error)
    print(f"{number} writes")


def check(export, journal, blocks):
    sent, least, succeeded, blocks_of = {}, {}, set(), {}
    flushes = 0

    def is_durable(number):
        block = blocks_of[number]
        least[block] = max(least.get(block, 0), number)

    for kind, *rest in lines(journal):
        if kind == "s":
            number, block = int(rest[0]), int(rest[1])
            blocks_of[number] = block
            sent.setdefault(block, {0}).add(number)
        elif kind == "a":
            succeeded.add(int(rest[0]))
        elif kind == "d":
            is_durable(int(rest[0]))
        elif kind == "b":
            succeeded.clear()
        elif kind == "f":
            flushes += 1
            for number in succeeded:
                is_durable(number)
            succeeded.clear()
    if not flushes:
        sys.exit("the journal has no flush: nothing is checked")
    for block in range(blocks):
        error, data = export.ask(READ, block, length=BLOCK)
        if error:
            sys.exit(f"block {block}: error {error}")
        found = struct.unpack("<Q", data[:8])[0]
        if data != filled(found) or found not in sent.get(block, {0}):
            sys.exit(f"block {block}: found {data[:16].hex()}, which was never written there")
        if found < least.get(block, 0):
            sys.exit(f"block {block}: found write {found}, expected {least[block]} or a later one")
    print(f"{len(least)} blocks hold what was durable, of {flushes} flushes")


def main():
    verb, path, name, journal, blocks = sys.argv[1:]
    {"write": write, "check": check}[verb](Export(path, name), journal, int(blocks))


main()
