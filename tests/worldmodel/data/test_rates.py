from worldmodel.data.rates import Rate


def test_a_rate_is_hits_among_cases_until_it_is_printed():
    rate = Rate()
    assert rate.json() == {"mean": None, "count": 0}
    rate.add(True)
    rate.add(False)
    rate.add(1, 2)
    assert rate == Rate(2, 4)
    assert rate.json() == {"mean": 0.5, "count": 4}
