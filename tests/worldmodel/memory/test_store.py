import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import helpers
from worldmodel.data.records import RecordError
from worldmodel.memory import ReplayMemory
from worldmodel.memory.encoders import Lexical


def lexical(state, action) -> np.ndarray:
    return Lexical().encode([(state, action)])[0]


def stored(*steps, capacity=100) -> ReplayMemory:
    """A memory of (task, state line, action, next line)."""
    memory = ReplayMemory(capacity=capacity)
    memory.add(
        [s[0] for s in steps],
        [helpers.transition((s[1],), s[2], (s[3],)) for s in steps],
    )
    return memory


def found(memory, task, state, action, k):
    (demos,) = memory.search([(task, (state,), action)], k)
    return [(t.action, t.next_state[0]) for t in demos]


def test_phi_is_a_unit_vector_of_both_halves():
    one = lexical(("the lamp is off",), "press lamp")
    np.testing.assert_allclose(np.linalg.norm(one), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(one, lexical(("THE lamp is off",), "press LAMP"))
    same_action = one @ lexical(("a wide garden",), "press lamp")
    same_state = one @ lexical(("the lamp is off",), "go away")
    neither = one @ lexical(("a wide garden",), "go away")
    # The action weighs as much as the whole state, so either half gives about a half.
    assert neither < 0.3 < same_action < 0.75
    assert 0.3 < same_state < 0.75


def test_state_and_action_are_not_the_same_words():
    one, other = lexical(("lamp",), "door"), lexical(("door",), "lamp")
    assert one @ other < 0.5


def test_an_empty_state_has_a_vector():
    assert np.isfinite(lexical((), "")).all()


def test_the_most_similar_comes_last():
    memory = stored(
        ("a", "a wide garden", "pick rose", "1"),
        ("b", "the lamp is off", "press lamp", "2"),
        ("c", "the lamp is off", "press bell", "3"),
    )
    got = found(memory, "q", "the lamp is off", "press lamp", 3)
    assert got == [("pick rose", "1"), ("press bell", "3"), ("press lamp", "2")]
    assert found(memory, "q", "a wide garden", "pick rose", 1) == [("pick rose", "1")]


def test_the_own_task_is_left_out():
    memory = stored(
        ("q", "the lamp is off", "press lamp", "answer"),
        ("b", "a wide garden", "pick rose", "other"),
    )
    got = found(memory, "q", "the lamp is off", "press lamp", 2)
    assert got == [("pick rose", "other")]


@given(
    steps=st.lists(
        st.tuples(*[st.sampled_from(["x", "y", "zz"])] * 4), min_size=1, max_size=12
    ),
    query=st.tuples(*[st.sampled_from(["x", "y", "zz"])] * 3),
    k=st.integers(0, 4),
)
def test_search_matches_a_loop(steps, query, k):
    task, state, action = query
    phi = lexical((state,), action)
    score = [float(phi @ lexical((s,), a)) for _, s, a, _ in steps]
    want = []
    # Equal scores may differ in the last bit, so only clear ranks are compared.
    for i in sorted(range(len(steps)), key=lambda i: (-round(score[i], 4), i)):
        effect = steps[i][2:]
        if steps[i][0] != task and effect not in want and len(want) < k:
            want.append(effect)
    got = found(stored(*steps), task, state, action, k)
    assert len(got) == len(set(got)) == len(want)
    assert {a for a, _ in got} <= {s[2] for s in steps if s[0] != task}
    best = {
        e: max(
            s for s, r in zip(score, steps, strict=True) if r[0] != task and r[2:] == e
        )
        for e in {*got, *want}
    }
    np.testing.assert_allclose(
        [best[e] for e in got[::-1]], [best[e] for e in want], atol=1e-4
    )


def test_one_effect_is_shown_once():
    memory = stored(
        *[("b", "the lamp is off", "press lamp", "lit")] * 5,
        ("c", "a wide garden", "pick rose", "red"),
    )
    got = found(memory, "q", "the lamp is off", "press lamp", 2)
    assert got == [("pick rose", "red"), ("press lamp", "lit")]


@pytest.mark.parametrize("own", [10, 200])
def test_a_crowd_of_the_own_task_hides_nothing(own):
    # However often the task was played, the other tasks still hold demonstrations.
    crowd = [("q", "the lamp is off", "press lamp", f"{i}") for i in range(own)]
    memory = stored(*crowd, ("b", "a wide garden", "pick rose", "red"), capacity=500)
    got = found(memory, "q", "the lamp is off", "press lamp", 1)
    assert got == [("pick rose", "red")]


def test_the_oldest_leave_first():
    memory = stored(*[("b", "s", f"act {i}", f"{i}") for i in range(5)], capacity=3)
    assert len(memory) == 3
    got = {n for _, n in found(memory, "q", "s", "act 0", 9)}
    assert got == {"2", "3", "4"}
    memory.add(["b"], [helpers.transition(("s",), "act 5", ("5",))])
    assert {n for _, n in found(memory, "q", "s", "act 0", 9)} == {"3", "4", "5"}


def test_many_queries_are_answered_in_order():
    memory = stored(*[("b", f"place {i}", f"act {i}", f"{i}") for i in range(10)])
    queries = [("q", (f"place {i % 10}",), f"act {i % 10}") for i in range(300)]
    got = [d[0].next_state[0] for d in memory.search(queries, 1)]
    assert got == [str(i % 10) for i in range(300)]


def test_nothing_to_search():
    empty, memory = ReplayMemory(), stored(("b", "s", "a", "n"))
    assert empty.search([("q", ("s",), "a")] * 2, 3) == [[], []]
    assert memory.search([("q", ("s",), "a")], 0) == [[]]
    assert memory.search([], 3) == []
    memory.add([], [])
    assert len(memory) == 1


def test_errors():
    with pytest.raises(ValueError, match="capacity must be >= 1, got 0"):
        ReplayMemory(capacity=0)
    with pytest.raises(ValueError, match="2 task ids, 1 transitions"):
        ReplayMemory().add(["a", "b"], [helpers.transition()])


class Counted(Lexical):
    """Lexical under another name, counting what it encodes."""

    name = "counted"

    def __init__(self):
        super().__init__(32)
        self.texts = 0

    def encode(self, pairs):
        self.texts += len(pairs)
        return super().encode(pairs)


STEPS = [("b", f"place {i}", f"act {i}", f"{i}") for i in range(7)]


def test_what_is_saved_answers_as_before(tmp_path):
    memory = stored(*STEPS, capacity=5)  # the ring has turned
    memory.save(tmp_path / "memory")
    loaded = ReplayMemory.load(tmp_path / "memory")
    assert loaded.entries() == memory.entries()
    assert [t.action for _, t in loaded.entries()] == [f"act {i}" for i in range(2, 7)]
    query = [("q", ("place 3",), "act 3")]
    assert loaded.nearest(query, 3) == memory.nearest(query, 3)
    more = helpers.transition(("place 9",), "act 9", ("9",))
    for m in (memory, loaded):  # the oldest still goes first
        m.add(["c"], [more])
    assert loaded.entries() == memory.entries()
    memory.save(tmp_path / "memory")  # in place of the one before
    assert ReplayMemory.load(tmp_path / "memory").entries() == memory.entries()
    assert [p.name for p in tmp_path.iterdir()] == ["memory"]


def test_a_memory_that_finds_no_room_leaves_the_one_before(tmp_path):
    memory = stored(*STEPS)
    memory.save(tmp_path / "memory")
    saved = np.load(tmp_path / "memory" / "vectors.npy")
    np.save(tmp_path / "plain.npy", saved)  # the same file as numpy's
    plain = (tmp_path / "plain.npy").read_bytes()
    assert (tmp_path / "memory" / "vectors.npy").read_bytes() == plain
    with (
        helpers.file_size_limit(1000),
        pytest.raises(OSError, match="File too large"),  # and no "7 requested"
    ):
        memory.save(tmp_path / "memory")
    loaded = ReplayMemory.load(tmp_path / "memory")
    assert loaded.entries() == memory.entries()


def test_vectors_are_read_back_only_for_their_encoder(tmp_path):
    stored(*STEPS).save(tmp_path / "m")
    other = Counted()
    loaded = ReplayMemory.load(tmp_path / "m", encoder=other)
    assert other.texts == 7
    loaded.save(tmp_path / "m")
    again = Counted()
    kept = ReplayMemory.load(tmp_path / "m", encoder=again)
    assert again.texts == 0
    query = [("q", ("place 3",), "act 3")]
    assert kept.nearest(query, 2) == loaded.nearest(query, 2)


def test_an_empty_memory_is_saved_too(tmp_path):
    ReplayMemory(capacity=3).save(tmp_path / "m")
    loaded = ReplayMemory.load(tmp_path / "m")
    assert (len(loaded), loaded.capacity) == (0, 3)


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(RecordError, match=r"memory\.json: no such file"):
        ReplayMemory.load(tmp_path / "none")
    stored(*STEPS).save(tmp_path / "m")
    np.save(tmp_path / "m" / "vectors.npy", np.zeros((3, 256), np.float32))
    with pytest.raises(RecordError, match=r"7 entries, got 7 transitions and 3 vect"):
        ReplayMemory.load(tmp_path / "m")
    (tmp_path / "m" / "memory.json").write_text("[]")
    with pytest.raises(RecordError, match="not a replay memory"):
        ReplayMemory.load(tmp_path / "m")
    (tmp_path / "m" / "memory.json").write_text('{"schema": "other/2"}')
    with pytest.raises(RecordError, match=r"expected schema 'dreamgym\.memory/1', got"):
        ReplayMemory.load(tmp_path / "m")


def test_similarity_is_the_cosine():
    memory = stored(*STEPS)
    ((score, t),) = memory.nearest([("q", ("place 3",), "act 3")], 1)[0]
    assert (round(score, 5), t.action) == (1.0, "act 3")


def test_as_many_different_demonstrations_as_there_are_nearby():
    """Twenty tasks that did the same do not keep the others out."""
    same = [(f"t{i}", "the lamp is off", "press lamp", "on") for i in range(20)]
    memory = stored(
        *same,
        ("a", "the lamp is off", "press bell", "rings"),
        ("b", "a wide garden", "pick rose", "red"),
    )
    got = [found(memory, "q", "the lamp is off", "press lamp", k) for k in (1, 2, 3, 4)]
    assert [len(x) for x in got] == [1, 2, 3, 3]
    assert got[1] == [("press bell", "rings"), ("press lamp", "on")]


def test_broken_vectors_are_named(tmp_path):
    memory = stored(("a", "x", "y", "z"))
    memory.save(tmp_path)
    for content in (b"", b"no array"):
        (tmp_path / "vectors.npy").write_bytes(content)
        with pytest.raises(RecordError, match=r"vectors.npy: expected an array"):
            ReplayMemory.load(tmp_path)


def test_a_memory_of_episodes_keeps_the_task_of_each_step():
    episodes = [helpers.lamp_and_door(f"room-{i}") for i in range(2)]
    memory = ReplayMemory.from_episodes(episodes, capacity=100)
    assert len(memory) == 6
    t = episodes[0].transitions[0]
    for task, found in (("room-0", 1), ("room-1", 1), ("else", 1)):
        assert len(memory.search([(task, t.state, t.action)], 1)[0]) == found
    alone = ReplayMemory.from_episodes(episodes[:1], capacity=100)
    assert alone.search([("room-0", t.state, t.action)], 1) == [[]]
