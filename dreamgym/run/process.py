"""Process settings: the compilation cache and how memory is returned."""

import ctypes
import sys
from pathlib import Path

import jax

# Of malloc.h: no buffer by mmap (M_MMAP_MAX), less than 2 GiB free is kept
# (M_TRIM_THRESHOLD), threads share one heap (M_ARENA_MAX).
_KEEP_MEMORY = ((-4, 0), (-1, 2**31 - 1), (-8, 1))


def tune_process() -> None:
    """Keep compiled programs on disk, and freed memory in the process.

    By default glibc returns each large buffer to the kernel, which has to clear its
    pages when the next update allocates it again. That makes an update take 1.5 times
    as long (docs/LOG.md, 2026-11-21).
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # not in every C library
            for option, value in _KEEP_MEMORY:
                libc.mallopt(option, value)
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        path = Path.home() / ".cache" / "dreamgym" / "xla"
        jax.config.update("jax_compilation_cache_dir", str(path))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
