"""The first signal ends the process in order; the signals that follow it raise no exception."""

import os
import signal

import pytest

from utils.signals import Interrupted, PendingSignal, defer_signals, raise_on_signals

pytestmark = pytest.mark.usefixtures("handlers_after_test")


def test_only_the_first_signal_raises_an_exception():
    """A second Ctrl-C would otherwise print a traceback while the first one is being reported."""
    raise_on_signals()
    with pytest.raises(Interrupted) as caught:
        os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.status == 130 and PendingSignal.first == signal.SIGINT


@pytest.mark.parametrize("is_own", [True, False])
def test_signals_after_a_deferred_one_raise_no_exception(is_own):
    """Also on a rank that learns of the signal from another rank."""
    raise_on_signals()
    pending, told = PendingSignal(), []
    pending.on_first = told.append
    with defer_signals(pending):
        if is_own:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            pending.note(signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert pending.number == PendingSignal.first == signal.SIGTERM and told == ["SIGTERM"]


def test_signals_after_a_block_without_one_raise_an_exception():
    raise_on_signals()
    with defer_signals(PendingSignal()):
        pass
    with pytest.raises(Interrupted):
        os.kill(os.getpid(), signal.SIGTERM)
