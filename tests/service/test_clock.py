"""The clock of the service."""

from departing.service.clock import Clock


def test_changes_of_the_system_time_are_not_followed():
    wall, monotonic = [1000.0], [0.0]
    clock = Clock(lambda: wall[0], lambda: monotonic[0])

    def later(seconds, adjustment=0.0):
        monotonic[0] += seconds
        wall[0] += seconds + adjustment
        return clock()

    assert later(5) == 1005
    assert later(5, 10**6) == 1010
    assert clock.adjustment == 10**6
    assert later(5, -(10**6) - 500) == 1015
    assert clock.adjustment == -500
