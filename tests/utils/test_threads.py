import gc
import threading

import pytest

from utils.threads import DaemonPool


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread is not threading.current_thread()}


def test_results_errors_and_threads():
    before = threads()
    pool = DaemonPool(3)
    assert len(threads() - before) == 3 and all(thread.daemon for thread in threads() - before)
    assert [future.result(10) for future in [pool.submit(pow, 2, n) for n in range(20)]] == [2**n for n in range(20)]
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(10)
    own = threads() - before
    del pool
    gc.collect()
    for thread in own:
        thread.join(10)
    assert not own & threads()


def test_close_cancels_the_calls_that_have_not_begun():
    pool, begun, may_end = DaemonPool(1), threading.Event(), threading.Event()
    first = pool.submit(lambda: begun.set() or may_end.wait(10))
    others = [pool.submit(pow, 2, n) for n in range(5)]
    assert begun.wait(10)
    pool.close()
    assert all(other.cancelled() for other in others) and not first.done()
    may_end.set()
    assert first.result(10)
