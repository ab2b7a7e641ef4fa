from worldmodel.text.novelty import novel_words


def test_novel_words_by_hand():
    # Known are the words of state, action and instruction; "red" is in none of them.
    got = novel_words(("a b",), "take c", "find d", ("a c", "d red", "b take"))
    assert got == {"red"}
    assert novel_words((), "", "", ()) == set()
