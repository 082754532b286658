"""The program of image ``pause``: waits for SIGTERM or SIGINT and ends. Assembled here, so that it needs no file.

It blocks both signals, waits for one of them and exits: as the first process of its PID namespace it would otherwise
never see them.
"""

from __future__ import annotations

import struct

from drakkar.node.agent.machine import architecture

#: SIGINT and SIGTERM as a kernel signal set.
_SIGNALS = struct.pack("<Q", 1 << (2 - 1) | 1 << (15 - 1))
_BASE = 0x400000
_ELF_HEADER, _PROGRAM_HEADER = 64, 56


def program_bytes() -> bytes:
    """An ELF file for this machine. Raises NotImplementedError on other machines than amd64 and arm64."""
    machines = {"amd64": (62, _amd64), "arm64": (183, _arm64)}
    if architecture() not in machines:
        raise NotImplementedError(
            f"no pause program for {architecture()}; map image pause to a layout or folder by --config"
        )
    machine, code = machines[architecture()]
    content = code()
    start = _BASE + _ELF_HEADER + _PROGRAM_HEADER
    size = _ELF_HEADER + _PROGRAM_HEADER + len(content)
    ident = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, start, _ELF_HEADER, 0, 0, _ELF_HEADER, _PROGRAM_HEADER, 1, 0, 0, 0
    )
    # One segment that is read and executed.
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment + content


def _amd64() -> bytes:
    syscall, set_r10, zero_edx = b"\x0f\x05", b"\x41\xba\x08\x00\x00\x00", b"\x31\xd2"

    def assembled(first: int, second: int) -> bytes:
        block = b"\xb8\x0e\x00\x00\x00\x31\xff\x48\x8d\x35" + struct.pack("<i", first) + zero_edx + set_r10 + syscall
        wait = (
            b"\xb8\x80\x00\x00\x00\x48\x8d\x3d" + struct.pack("<i", second) + b"\x31\xf6" + zero_edx + set_r10 + syscall
        )
        leave = b"\x31\xff\xb8\x3c\x00\x00\x00" + syscall
        return block + wait + leave

    # Addresses count from the end of the instruction that holds them.
    length = len(assembled(0, 0))
    wait_at = assembled(0, 0).index(b"\xb8\x80\x00\x00\x00")
    return assembled(length - 14, length - (wait_at + 12)) + _SIGNALS


def _arm64() -> bytes:
    def move(register: int, value: int) -> int:
        return 0xD2800000 | value << 5 | register

    def address(register: int, distance: int) -> int:
        return 0x10000000 | (distance & 3) << 29 | (distance >> 2) << 5 | register

    call = 0xD4000001
    count, signals_at = 15, 64
    words = [
        *(move(0, 0), address(1, signals_at - 1 * 4), move(2, 0), move(3, 8), move(8, 135), call),
        *(address(0, signals_at - 6 * 4), move(1, 0), move(2, 0), move(3, 8), move(8, 137), call),
        *(move(0, 0), move(8, 93), call),
    ]
    return struct.pack(f"<{count}I", *words) + bytes(signals_at - count * 4) + _SIGNALS
