"""Since when heartbeats could be taken, and what that does to the end of a lease."""

from runlane_server.runtime.hearing import LOOK_AGAIN, QUIET, Hearing

SECOND = 1_000_000
LEASE = 30 * SECOND


def test_a_server_that_looked_all_the_time_puts_nothing_off():
    hearing = Hearing(3 * SECOND)
    for now in range(SECOND, 60 * SECOND, SECOND):
        hearing.look(now)
    assert hearing.end(40 * SECOND, LEASE, 60 * SECOND) == 40 * SECOND


def test_after_standing_still_a_lease_gets_its_full_time():
    hearing = Hearing(3 * SECOND)
    hearing.look(10 * SECOND)
    hearing.look(20 * SECOND)
    assert hearing.end(15 * SECOND, LEASE, 20 * SECOND) == 20 * SECOND + LEASE
    assert hearing.end(90 * SECOND, LEASE, 20 * SECOND) == 90 * SECOND


def test_nothing_runs_out_while_the_store_is_away_nor_for_a_lease_after_it():
    hearing = Hearing(None)
    hearing.store(5 * SECOND, taken=False)
    assert hearing.end(1, LEASE, 50 * SECOND) == 50 * SECOND + LOOK_AGAIN
    hearing.store(60 * SECOND, taken=True)
    assert hearing.end(1, LEASE, 60 * SECOND) == 60 * SECOND + LEASE
    hearing.store(70 * SECOND, taken=True)
    assert hearing.end(1, LEASE, 70 * SECOND) == 60 * SECOND + LEASE


def test_the_store_is_in_doubt_while_it_is_away_and_after_a_long_quiet():
    hearing = Hearing(None)
    hearing.look(100 * SECOND)
    assert not hearing.doubts(100 * SECOND + QUIET)
    assert hearing.doubts(101 * SECOND + QUIET)
    hearing.store(200 * SECOND, taken=True)
    assert not hearing.doubts(200 * SECOND + QUIET)
    hearing.store(201 * SECOND, taken=False)
    assert hearing.doubts(201 * SECOND)
    hearing.store(202 * SECOND, taken=True)
    assert not hearing.doubts(202 * SECOND)


def test_reads_that_do_not_reach_the_store_put_off_the_end_until_one_does_or_a_write():
    for back in (lambda hearing, now: hearing.see(now), lambda h, now: h.store(now, taken=True)):
        hearing = Hearing(None)
        hearing.lose_sight()
        assert hearing.end(1, LEASE, 50 * SECOND) == 50 * SECOND + LOOK_AGAIN
        assert not hearing.store_away
        back(hearing, 60 * SECOND)
        assert hearing.end(1, LEASE, 60 * SECOND) == 60 * SECOND + LEASE
        back(hearing, 70 * SECOND)
        assert hearing.end(1, LEASE, 70 * SECOND) == 60 * SECOND + LEASE
