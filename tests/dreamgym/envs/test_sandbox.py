"""The sandbox: what code may do, and which limit ends it."""

import time

import pytest

from dreamgym.envs.sandbox import Limits, run_python


def test_output_and_modules_of_the_standard_library():
    code = (
        "import json, re, collections, fractions, math\n"
        "print(math.factorial(20), fractions.Fraction(1, 3), json.dumps([1]))"
    )
    assert run_python(code) == ("2432902008176640000 1/3 [1]\n", "")
    assert run_python("") == ("", "")
    assert run_python("print('ä \N{SNOWMAN}')").output == "ä \N{SNOWMAN}\n"
    threads = (
        "import threading\nt = threading.Thread(target=print, args=(1,))\n"
        "t.start(); t.join()"
    )
    assert run_python(threads) == ("1\n", "")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("import sys; sys.exit(3)", "exit status 3"),
        ("'a' * 10 ** 10", "MemoryError"),
        ("print('before'); open('f', 'w').write('x' * 10 ** 8)", "File too large"),
        ("open('/etc/passwd').read()", "not in the present directory"),
        ("open('/tmp/dreamgym-was-here', 'w')", "not in the present directory"),
        ("import os; os.remove('/etc/hostname')", "os.remove is not allowed"),
        ("import os; os.chdir('/')", "os.chdir is not allowed"),
        ("import os; os.symlink('/etc', 'e')", "os.symlink is not allowed"),
        ("import os; os.listdir('/root')", "os.listdir is not allowed"),
        ("import os; os.system('ls')", "os.system is not allowed"),
        ("import os; os.fork()", "os.fork is not allowed"),
        ("import os; os.kill(os.getppid(), 9)", "os.kill is not allowed"),
        (
            "import subprocess; subprocess.run(['ls'])",
            "_posixsubprocess is not allowed",
        ),
        (
            "import multiprocessing as m\n"
            "m.get_context('spawn').Process(target=print).start()",
            "is not allowed",
        ),
        (
            "from multiprocessing.shared_memory import SharedMemory\n"
            "SharedMemory(create=True, size=9)",
            "is not allowed",
        ),
        ("import sqlite3; sqlite3.connect('/tmp/x.db')", "sqlite3.connect is not"),
        ("import os; os.mkfifo('/tmp/dreamgym-fifo')", "no attribute 'mkfifo'"),
        ("import resource as r; r.prlimit(0, r.RLIMIT_CPU)", "resource.prlimit is not"),
        ("import sys; print('e' * 10 ** 5, file=sys.stderr); 1 / 0", "ZeroDivision"),
        ("import socket; socket.create_connection(('1.1.1.1', 53))", "is not allowed"),
        ("import ctypes; ctypes.CDLL(None)", "ctypes.dlopen is not allowed"),
        (
            "import resource as r; r.setrlimit(r.RLIMIT_CPU, (99, 99))",
            "resource.setrlimit is not allowed",
        ),
        ("input()", "EOFError"),
        ("import numpy", "No module named 'numpy'"),
    ],
)
def test_what_is_forbidden_says_so(code, reason):
    assert reason in run_python(code).reason


def test_files_of_its_own_directory_are_its_own():
    code = (
        "open('a', 'w').write('hi'); import os; print(open('a').read(), os.listdir())"
    )
    for _ in range(2):  # each run has an empty directory
        assert run_python(code) == ("hi ['a']\n", "")


def test_nothing_of_this_process_is_handed_on(monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hidden")
    result = run_python("import os, sys; print(dict(os.environ), sys.argv)")
    assert not result.reason
    assert "hidden" not in result.output
    assert (
        "dreamgym.envs" not in run_python("import sys; print(list(sys.modules))").output
    )


@pytest.mark.medium
def test_deadlines_end_what_does_not_end():
    begin = time.monotonic()
    late = run_python("print(1, flush=True)\nwhile True: pass", Limits(seconds=0.5))
    assert late == ("1\n", "it ran longer than 0.5 s")
    asleep = run_python("import time; time.sleep(60)", Limits(seconds=0.5))
    assert asleep.reason == "it ran longer than 0.5 s"
    assert time.monotonic() - begin < 20
    busy = run_python("while True: pass", Limits(seconds=60, cpu_seconds=1))
    assert busy.reason == "it took more than 1 s of processor time"


def test_a_deep_tree_of_directories_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = "import os\nfor _ in range(1500):\n    os.mkdir('d'); os.chdir('d')"
    run_python(code)
    assert list(tmp_path.iterdir()) == []


def test_output_is_cut():
    result = run_python("print('y' * 10 ** 5)", Limits(output=30))
    assert result == ("y" * 30, "")
