"""The process is tuned: what is freed stays, and is not paged in again."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, sys
from dreamgym.run.allocator import keep_freed_memory

if sys.argv[1] == "tuned":
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
size, faults = 64 << 20, []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(size)
    libc.memset(block, 1, size)
    libc.free(block)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(max(faults[1:]))
"""


def page_faults(how):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt of glibc")
def test_a_buffer_that_was_freed_is_not_paged_in_again():
    assert page_faults("tuned") < 100
    assert page_faults("as it was") > 1000  # 64 MiB are 16,384 pages of 4 KiB


ORDER = """
import sys
from dreamgym.cli import main

# The package's `main` is the function; its module is still to be had.
module = sys.modules["dreamgym.cli.main"]
module.keep_freed_memory = lambda: print("jax" in sys.modules)
sys.exit(main(["settings", "train.update.learning_rate"]))
"""


def test_the_command_line_asks_for_it_before_jax_has_threads():
    """A thread keeps the heap that it began with."""
    done = subprocess.run(
        [sys.executable, "-c", ORDER], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[0] == "False"
