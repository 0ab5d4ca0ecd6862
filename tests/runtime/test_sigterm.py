"""SIGTERM inside a block, on every Python: nothing here imports torch."""

import signal
import subprocess
import textwrap
import time

import pytest

from helpers.programs import run_python

SETUP = """
import asyncio, ctypes, multiprocessing, os, signal, sys, threading, time, warnings
from gpumap.runtime.sigterm import Sigterm, Terminated

warnings.simplefilter("ignore", DeprecationWarning)  # threads and forks


def told():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)


def say(*words):
    print(*words, flush=True)


"""


def run(body: str, first: str = "") -> tuple[int, str]:
    """Run a script behind SETUP; return its exit code and its output."""
    done = run_python(
        *("-c", first + SETUP + textwrap.dedent(body)),
        stderr=subprocess.STDOUT,
        # A shell may have left SIGTERM ignored.
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    )
    return done.returncode, done.stdout


def test_it_is_raised_and_the_exit_code_is_a_shells() -> None:
    """The first SIGTERM is raised, a second one would kill; the exit code is 143."""
    code, out = run(
        """
        with Sigterm(5):
            try:
                told()
            finally:
                say("cleaned up", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
        """
    )
    assert (code, out) == (143, "cleaned up True\n")


FORKS = {
    "multiprocessing": """
        context = multiprocessing.get_context("fork")
        child = context.Process(target=time.sleep, args=(60,))
        child.start()
        time.sleep(0.3)
        child.terminate()
        child.join()
        say("child", child.exitcode)
    """,
    "pool": """
        with multiprocessing.get_context("fork").Pool(2) as pool:
            say(pool.map(abs, [-1, 1]))
    """,
    "fork": """
        pid = os.fork()
        if pid == 0:
            told()
            os._exit(0)
        say("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """,
    "C": """
        pid = ctypes.CDLL(None).fork()
        if pid == 0:
            try:
                told()
            finally:
                os._exit(0)
        say("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """,
}
SAID = {
    "multiprocessing": "child -15",
    "pool": "[1, 1]",
    "fork": "child -15",
    "C": "child 0",
}


@pytest.mark.parametrize("how", FORKS)
@pytest.mark.parametrize("loop", ["no loop", "asyncio imported"])
def test_a_childs_signal_is_not_its_parents(how: str, loop: str) -> None:
    """SIGTERM to a child, even one that C code forked, is not raised in its parent."""
    body = textwrap.dedent(FORKS[how])
    imported = "import asyncio" if loop != "no loop" else "sys.modules.pop('asyncio')"
    code, out = run(
        f"{imported}\nwith Sigterm(1):\n"
        + textwrap.indent(body, "    ")
        + "\n    time.sleep(2)\n    say('ended well')\n"
    )
    assert (code, out) == (0, f"{SAID[how]}\nended well\n")


def test_a_child_is_ended_by_the_signal_from_its_first_moment() -> None:
    """SIGTERM kills a forked child from its first moment: it has no handler."""
    code, out = run(
        """
        with Sigterm(5):
            for _ in range(300):
                pid = os.fork()
                if pid == 0:
                    time.sleep(30)
                    os._exit(0)
                os.kill(pid, signal.SIGTERM)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -15
        say("all of them")
        """
    )
    assert (code, out) == (0, "all of them\n")


def test_a_process_that_forks_is_ended_by_the_signal() -> None:
    """SIGTERM during os.fork() kills: an error raised in a fork hook would be lost."""
    code, out = run(
        """
        with Sigterm(1):
            if os.fork() == 0:
                os._exit(0)
            time.sleep(30)
        """,
        # The hook that is registered first runs last.
        first="import os; os.register_at_fork(before=lambda: told())",
    )
    assert (code, out) == (-signal.SIGTERM, "")


def test_threads_that_fork_at_once_leave_the_handler_as_it_was() -> None:
    """The handler, removed while a thread forks, is back after many such forks."""
    code, out = run(
        """
        def forks():
            for _ in range(100):
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)

        with Sigterm(5):
            threads = [threading.Thread(target=forks) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            try:
                told()
            finally:
                say("cleaned up")
        """,
        first="import os; os.register_at_fork(before=lambda: time.sleep(0.0001))",
    )
    assert (code, out) == (143, "cleaned up\n")


@pytest.mark.parametrize(
    "set_handler",
    [
        "signal.signal(signal.SIGTERM, save); told()",
        "asyncio.run(by_asyncio())",
        # The handler is removed before the watcher can see it.
        "before = signal.signal(signal.SIGTERM, save); told(); "
        "signal.signal(signal.SIGTERM, before); time.sleep(2); print(end='')",
    ],
)
def test_a_handler_of_the_users_is_left_to_do_its_work(set_handler: str) -> None:
    """A handler that the user sets inside the block has no time limit."""
    code, out = run(
        f"""
        def save(*_):
            time.sleep(2)
            say("saved")

        async def by_asyncio():
            saved = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, lambda: (save(), saved.set()))
            os.kill(os.getpid(), signal.SIGTERM)
            await saved.wait()

        with Sigterm(1):
            {set_handler}
            say("went on")
        """
    )
    assert (code, out) == (0, "saved\nwent on\n")


def test_what_the_user_does_about_it_has_no_bound() -> None:
    """The user's clean-up after SIGTERM has no time limit."""
    code, out = run(
        """
        with Sigterm(1) as answer:
            try:
                told()
            finally:
                time.sleep(2)
                say("saved")
        """
    )
    assert (code, out) == (143, "saved\n")


HELD = """
mutex = ctypes.create_string_buffer(64)
libc = ctypes.CDLL(None)
libc.pthread_mutex_init(mutex, None)
libc.pthread_mutex_lock(mutex)
"""


@pytest.mark.parametrize("when", ["at once", "while leaving"])
def test_a_library_that_holds_the_main_thread_is_waited_for_in_vain(when: str) -> None:
    """If C code blocks the main thread, last_words run and the exit code is 143."""
    inside = "libc.pthread_mutex_lock(mutex)"
    if when == "while leaving":
        inside = """
            try:
                told()
            finally:
                answer.leaving.set()
                libc.pthread_mutex_lock(mutex)
        """
    code, out = run(
        HELD
        + textwrap.dedent(
            """
            with Sigterm(1) as answer:
                answer.last_words = lambda: say("last words")
                threading.Timer(0.3, told).start()
            """
            if when == "at once"
            else """
            with Sigterm(1) as answer:
                answer.last_words = lambda: say("last words")
            """
        )
        + textwrap.indent(textwrap.dedent(inside).strip(), "    ")
    )
    assert code == 143
    assert out.splitlines()[0] == "last words"
    assert "did not leave within 1 s, because a library did not" in out


def test_a_handler_set_before_stays_in_charge() -> None:
    """If the user has set a SIGTERM handler before the block, nothing is installed."""
    code, out = run(
        """
        signal.signal(signal.SIGTERM, lambda *_: say("mine"))
        with Sigterm(1):
            told()
            say(signal.set_wakeup_fd(-1), threading.active_count())
        """
    )
    assert (code, out) == (0, "mine\n-1 1\n")


def test_nothing_is_left_and_nothing_of_others_is_taken() -> None:
    """Leaving removes all that the block installed, and keeps the user's wake-up fd."""
    code, out = run(
        """
        import socket
        near, far = socket.socketpair()
        far.setblocking(False)
        for _ in range(3):
            with Sigterm(1):
                pass
        default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        say(default, threading.active_count())
        with Sigterm(1):
            signal.set_wakeup_fd(far.fileno())
        say(signal.set_wakeup_fd(-1) == far.fileno())
        """
    )
    assert (code, out) == (0, "True 1\nTrue\n")


def test_many_signals_do_not_hold_the_end() -> None:
    """Thousands of signals, which fill the watcher's socket, do not delay the exit."""
    began = time.monotonic()
    code, out = run(
        """
        with Sigterm(1):
            signal.signal(signal.SIGALRM, lambda *_: None)
            signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
            time.sleep(1)
        signal.setitimer(signal.ITIMER_REAL, 0)
        say("left")
        """
    )
    assert (code, out) == (0, "left\n")
    assert time.monotonic() - began < 30
