import pytest

from worldmodel.data.records import Transition
from worldmodel.text.novelty import is_reveal, novel_words, words_of


def test_words_have_no_punctuation_and_no_case():
    assert words_of('{"id": "T25", "Price": 7.50}, Row 3.') == [
        "id",
        "t25",
        "price",
        "7.50",
        "row",
        "3",
    ]


def test_novel_words_by_hand():
    # Known are the words of state, action and instruction; "red" is in none of them.
    got = novel_words(("a b",), "take c", "find d", ("a c", "d red", "b take"))
    assert got == {"red"}
    assert novel_words((), "", "", ()) == set()
    assert novel_words(("x",), "", "", ("red",), history=("red apple",)) == set()


@pytest.mark.parametrize(
    ("state", "action", "after", "novel"),
    [
        ("an apple", "take", '"apple", taken', {"taken"}),  # punctuation is no word
        ("row 3", "move south", "row 4", set()),  # a count by one
        ("row 3", "move north", "row 2", set()),
        ("7 coins", "pay 5", "2 coins", set()),  # a difference
        ("7 coins", "earn 5", "12 coins", set()),  # a sum
        ("cost 1.5", "buy 2.5", "sum 4.0 cost", {"sum"}),
        ("7 coins", "pay 5", "40 coins", {"40"}),
        ("held nothing", "book", "held T68", {"t68"}),  # an identifier is no number
    ],
)
def test_a_number_that_can_be_computed_is_not_novel(state, action, after, novel):
    assert novel_words((state,), action, "", (after,)) == novel


def test_numbers_of_the_history_are_known_but_not_added_up():
    assert novel_words(("x",), "a", "", ("30",), history=("10", "20")) == {"30"}
    assert novel_words(("x",), "a", "", ("20",), history=("10", "20")) == set()


@pytest.mark.parametrize(
    ("flag", "after", "expected"),
    [
        (None, "apple", True),
        (None, "box", False),
        (None, "cave", False),  # the history holds it
        (None, "key", False),  # and the instruction this one
        (False, "apple", False),
        (True, "box", True),
    ],
)
def test_a_reveal_is_what_the_environment_says_or_else_a_novel_word(
    flag, after, expected
):
    t = Transition(state=("box",), action="open", next_state=(after,), reveals=flag)
    assert is_reveal(t, "find the key", ("cave",)) == expected


def test_a_row_of_thousands_of_digits_is_a_word_and_no_number():
    """Python refuses to calculate with it."""
    tape = "01" * 3000
    assert novel_words(("tape 0",), "write", "", (f"tape {tape}", "1")) == {tape}
    assert novel_words((f"tape {tape}", "3"), "write", "", ("4", tape)) == set()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("按3号灯", ["按", "3", "号", "灯"]),
        ("ランプ3", ["ラ", "ン", "プ", "3"]),
        ("「東京」。", ["東", "京"]),
        ("・【ア】ー", ["ア", "ー"]),
        ("เปิดไฟ", ["เ", "ปิ", "ด", "ไ", "ฟ"]),
        ("वस्तु हिन्दी", ["वस्तु", "हिन्दी"]),
        ("cafe\u0301 cru", ["cafe\u0301", "cru"]),
        ("문을 열다", ["문을", "열다"]),
        ("открыть дверь", ["открыть", "дверь"]),
    ],
)
def test_words_of_other_scripts(text, words):
    """Without spaces each character is a word, and no mark is cut off."""
    assert words_of(text) == words


def test_a_visible_game_reveals_nothing_in_any_script():
    for off, on, action in (
        ("lamp 3 is off", "lamp 3 is on", "turn on lamp 3"),
        ("3号灯关了", "3号灯开了", "开3号灯"),
    ):
        assert novel_words((off, on.replace("3", "4")), action, "", (on,)) == set()
    # But another vowel sign makes another word.
    assert novel_words(("वस्तु हिन्दी",), "ले", "", ("वस्तु हिन्दु",)) == {"हिन्दु"}
