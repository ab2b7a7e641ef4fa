"""The numbers that decide, the verdict, and a meaning for every entry."""

from dreamgym.evaluation.leading_numbers import headlines, is_trusted, leading, verdict
from dreamgym.evaluation.pages import scorecard_entries
from tests.dreamgym.evaluation.pages.test_scorecard_page import card


def rate(mean, count):
    return {"mean": mean, "count": count, "effective": float(count)}


def scorecard(states, rewards, ends, agreement):
    return {
        "exact": {"predictable": states},
        "reward": {"recall": rewards},
        "done": {"recall": ends},
        "open_loop": {"outcomes": {"agree": agreement}},
    }


def levels(found):
    return [part.level for number in leading(found) for part in number.parts]


def test_a_level_is_of_the_whole_interval():
    # Wilson at 95 %: 98 of 100 from 93.0 %; 9 of 10 from 59.6 to 98.2 %; 5 of 10 to
    # 76.3 %.
    result = scorecard(rate(0.98, 100), rate(0.9, 10), rate(0.5, 10), rate(None, 0))
    assert levels(result) == ["good", "open", "bad", "unknown"]


def test_the_verdict_is_one_sentence_that_names_what_is_missing():
    sure, few, low = rate(0.98, 100), rate(0.9, 10), rate(0.5, 10)
    assert verdict(scorecard(sure, sure, sure, sure)) == (
        "A policy can be trained in this dream: every leading number is at least "
        "90 %, by its 95 % interval."
    )
    assert verdict(scorecard(sure, few, sure, few)) == (
        "Nothing speaks against this dream, but the cases do not decide about rewards "
        "found (90 % of 10) and agreement on success (90 % of 10): the intervals reach "
        "below 90 %."
    )
    assert verdict(scorecard(low, sure, sure, low)) == (
        "Do not trust this dream yet: right next states (50 %) and agreement on "
        "success (50 %) are below 90 %."
    )
    assert verdict(scorecard(sure, low, few, sure)) == (
        "Do not trust this dream yet: rewards found (50 %) is below 90 %, and the "
        "cases do not decide about ends found (90 % of 10)."
    )


def test_a_number_that_is_not_decided_is_named_with_its_own_cases():
    # Wilson at 95 %: 92 % of 211 from 87.6 %. It is no small count, but too near 90 %.
    sure, near, none = rate(0.98, 100), rate(0.92, 211), rate(None, 0)
    assert "(92 % of 211) and ends found (no case)" in verdict(
        scorecard(sure, near, none, sure)
    )
    weighted = near | {"effective": 30.4}
    assert "right next states (92 % of 211, which weigh as much as 30):" in verdict(
        scorecard(weighted, sure, sure, sure)
    )


def test_the_state_repeated_stands_beside_right_next_states():
    sure = rate(0.98, 100)
    good = scorecard(sure, sure, sure, sure)
    for share, named in ((0.4, False), (0.98, True), (1.0, False)):
        result = good | {"copy": {"predictable": rate(share, 100)}}
        lines = dict(headlines(result))
        assert f"{share:.1%}" in lines["the state repeated (baseline)"]
        assert ("To repeat the state" in verdict(result)) == named
        # Where nothing changes at all, that is what has to be known.
        assert ("Nothing changes in the steps" in verdict(result)) == (share == 1.0)
        assert f"right in {share:.0%}".replace("%", " %") in leading(result)[0].meaning
    # A dream that is not trusted anyway is not blamed for this as well.
    result = scorecard(rate(0.0, 100), sure, sure, sure)
    result["copy"] = {"predictable": rate(0.4, 100)}
    assert "To repeat" not in verdict(result)
    # Without a case there is no baseline.
    result = good | {"copy": {"predictable": rate(None, 0)}}
    assert "the state repeated (baseline)" not in dict(headlines(result))


def test_ends_of_training_episodes_are_an_entry_where_measured():
    def labels(scorecard):
        return [e.label for g in scorecard_entries.groups(scorecard) for e in g.entries]

    label = "ends of training episodes found"
    assert label not in labels(card())
    assert label in labels(card() | {"training_ends": rate(0.07, 29)})


def test_ends_of_training_episodes_are_a_number_of_their_own_where_measured():
    sure, none = rate(0.98, 100), rate(0.0, 3)
    card = scorecard(sure, sure, none, sure) | {"training_ends": rate(0.07, 29)}
    assert levels(card) == ["good", "good", "bad", "bad", "good"]
    assert "ends of training episodes found (7 %)" in verdict(card)
    card["training_ends"] = rate(None, 0)
    assert levels(card) == ["good", "good", "bad", "good"]


def test_more_is_required_of_identifiers():
    sure, copies = rate(1.0, 1000), rate(0.95, 400)
    result = scorecard(*[sure] * 4) | {"copying": {"state_unseen": copies}}
    assert levels(result) == ["good", "bad", "good", "good", "good"]
    assert verdict(result) == (
        "Do not trust this dream yet: identifiers copied (95 %) is below 99 %."
    )
    result["done"]["recall"] = rate(0.5, 10)
    assert verdict(result) == (
        "Do not trust this dream yet: identifiers copied (95 %) is below 99 %, ends "
        "found (50 %) is below 90 %."
    )
    result["copying"]["state_unseen"] = rate(0.99, 100)
    result["done"]["recall"] = rate(0.9, 10)
    assert verdict(result) == (
        "Nothing speaks against this dream, but the cases do not decide about "
        "identifiers copied (99 % of 100) and ends found (90 % of 10): the intervals "
        "reach below 90 % and 99 %."
    )


def test_a_dream_that_ignores_the_instruction_is_not_to_be_trusted():
    sure = rate(0.98, 100)
    result = scorecard(*[sure] * 4)
    result["instruction"] = {"agree": rate(None, 0)}  # nothing follows from it
    assert levels(result) == ["good"] * 4
    result["instruction"] = {"agree": rate(0.6, 80)}
    assert levels(result) == ["good", "good", "good", "bad", "good"]
    assert verdict(result) == (
        "Do not trust this dream yet: reveals as the instruction says (60 %) is below "
        "90 %."
    )


def test_identifiers_decide_where_there_are_enough_to_copy():
    sure = rate(0.98, 100)
    result = scorecard(*[sure] * 4)
    result["copying"] = {"state_unseen": rate(0.0, 19)}
    assert levels(result) == ["good"] * 4
    result["copying"] = {"state_unseen": rate(0.77, 60)}
    assert levels(result) == ["good", "bad", "good", "good", "good"]
    assert verdict(result) == (
        "Do not trust this dream yet: identifiers copied (77 %) is below 99 %."
    )


def test_a_scorecard_without_whole_episodes_has_no_agreement():
    result = scorecard(*[rate(0.98, 100)] * 4)
    del result["open_loop"]
    assert levels(result)[-1] == "unknown"
    assert "agreement on success" in verdict(result)


def test_every_entry_and_every_group_is_explained_and_has_a_name_of_its_own():
    groups = scorecard_entries.groups(card())
    assert [g for g in groups if not g.meaning.endswith(".")] == []
    entries = [e for g in groups for e in g.entries]
    assert len(entries) > 30
    assert [e.label for e in entries if len(e.meaning) < 8] == []
    labels = [e.label for e in entries]
    assert len(set(labels)) == len(labels)


def test_a_few_right_next_states_are_not_trusted():
    for count in (1, 7, 8, 100):
        result = scorecard(rate(1.0, count), rate(1.0, 9), rate(1.0, 9), rate(1.0, 9))
        assert is_trusted(result) == (count >= 8)
    low = scorecard(rate(0.5, 99), rate(1.0, 9), rate(1.0, 9), rate(1.0, 9))
    assert not is_trusted(low)


def test_what_is_forgotten_is_an_entry_where_there_is_any():
    def labels(result):
        lists = (group.entries for group in scorecard_entries.groups(result))
        return {e.label.strip(): e for entries in lists for e in entries}

    none = card()
    assert not any("seen before" in label for label in labels(none))
    part = {"share": none["share"] | {"forgotten": 0.2}}
    part["exact"] = none["exact"] | {"forgotten": rate(0.1, 30)}
    entry = labels(none | part)["seen before (20% of all)"]
    assert entry.value.strip().startswith("10.0%")
