from worldmodel.data.rates import Rate


def test_a_rate_weighs_its_cases():
    rate = Rate()
    assert rate.json() == {"mean": None, "count": 0, "effective": 0.0}
    rate.add(True, 1.0)
    rate.add(False, 3.0)
    # (1 * 1 + 0 * 3) / 4, and Kish: (1 + 3)^2 / (1 + 9); unweighted it would be 1/2.
    assert rate.json() == {"mean": 0.25, "count": 2, "effective": 1.6}
    assert Rate.of(1, 4).json() == {"mean": 0.25, "count": 4, "effective": 4.0}
