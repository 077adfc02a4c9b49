"""The first signal ends the process in order, later ones raise no exception; threads that delay no exit."""

import gc
import os
import signal
import threading

from pytest import fixture, mark, raises

from utils.signals import Interrupted, PendingSignal, end_without_exceptions, handle_signals, raise_on_signals
from utils.threads import DaemonPool

pytestmark = mark.usefixtures("handlers_after_test")


def send(*signals: signal.Signals):
    for number in signals:
        os.kill(os.getpid(), number)


def test_only_the_first_signal_raises_an_exception():
    """A second Ctrl-C would otherwise print a traceback while the first one is being reported."""
    raise_on_signals()
    with raises(Interrupted) as caught:
        send(signal.SIGINT)
    send(signal.SIGINT, signal.SIGTERM)
    assert caught.value.status == 130


@fixture
def exits(monkeypatch) -> list[int]:
    """The statuses with which the process would have ended at once."""
    found = []
    monkeypatch.setattr("utils.signals.os._exit", found.append)
    return found


@mark.parametrize("is_own", [True, False])
def test_signals_after_a_recorded_one_raise_no_exception(is_own, monkeypatch, exits):
    """Also on a rank that learns of the signal from another rank. A launcher forwards Ctrl-C at once: no exit."""
    raise_on_signals()
    pending = PendingSignal()
    told = []
    pending.on_first = told.append
    handle_signals(pending.receive)
    if is_own:
        send(signal.SIGTERM)
    else:
        pending.note(signal.SIGTERM)
    send(signal.SIGINT)
    monkeypatch.setattr("utils.signals._DUPLICATE_SECONDS", 0.0)
    send(signal.SIGUSR1)
    assert (pending.number, told, exits) == (signal.SIGTERM, ["SIGTERM"], [])


@mark.parametrize("is_recorded", [True, False])
def test_no_signal_interrupts_the_exit_but_a_second_ctrl_c(is_recorded, monkeypatch, exits):
    """The first one may have come before: the recorder of a training stays."""
    monkeypatch.setattr("utils.signals._DUPLICATE_SECONDS", 0.0)
    raise_on_signals()
    if is_recorded:
        handle_signals(PendingSignal().receive)
        send(signal.SIGTERM)
    end_without_exceptions()
    send(signal.SIGINT)
    assert exits == [130] * is_recorded
    send(signal.SIGINT)
    assert exits[-1:] == [130]


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread is not threading.current_thread()}


def test_results_errors_and_threads():
    before = threads()
    pool = DaemonPool(3)
    assert len(threads() - before) == 3
    assert all(thread.daemon for thread in threads() - before)
    assert [future.result(10) for future in [pool.submit(pow, 2, n) for n in range(20)]] == [2**n for n in range(20)]
    with raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(10)
    own = threads() - before
    del pool
    gc.collect()
    for thread in own:
        thread.join(10)
    assert not own & threads()


def test_close_cancels_the_calls_that_have_not_begun():
    pool = DaemonPool(1)
    begun = threading.Event()
    may_end = threading.Event()
    first = pool.submit(lambda: begun.set() or may_end.wait(10))
    others = [pool.submit(pow, 2, n) for n in range(5)]
    assert begun.wait(10)
    pool.close()
    assert all(other.cancelled() for other in others)
    assert not first.done()
    may_end.set()
    assert first.result(10)
