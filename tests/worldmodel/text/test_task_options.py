"""Options of a task whose words were changed."""

from worldmodel.text.task_options import renamed_words, with_renamed_words


def test_words_that_replace_others():
    assert renamed_words("go from a to b", "go from c to d") == {"a": "c", "b": "d"}
    assert renamed_words("same", "same") == {}
    assert renamed_words("a or a", "b or c") is None  # one word became two
    assert renamed_words("go to a", "go a") is None


def test_options_say_the_same_of_the_new_task():
    options = {
        "seed": 3,
        "tools": [{"name": "ada"}],
        "calls": [
            {"tool": "get", "arguments": {"key": "ada", "n": 3, "on": True}},
            None,
        ],
        "data": {"ada": "x-ada.", "kim": 2.5},
    }
    assert with_renamed_words(options, {"ada": "bob", "3,": "7,"}) == {
        "tools": [{"name": "ada"}],
        "calls": [
            {"tool": "get", "arguments": {"key": "bob", "n": 7, "on": True}},
            None,
        ],
        "data": {"bob": "x-bob.", "kim": 2.5},
    }


def test_expected_calls_keep_the_names_of_tools_and_arguments():
    call = {
        "function": {"name": "price", "arguments": '{"fruit": "fig", "tool": "price"}'}
    }
    options = {"calls": [call, [call, call], None]}
    renames = {"price": "cost", "fig": "kiwi", "tool": "item", "fruit": "thing"}
    new = {"tool": "price", "arguments": {"fruit": "kiwi", "tool": "cost"}}
    assert with_renamed_words(options, renames) == {"calls": [new, [new, new], None]}
    nested = {"tool": "put", "arguments": {"fruit": ["fig", {"fig": "fig"}]}}
    changed = {"tool": "put", "arguments": {"fruit": ["kiwi", {"fig": "kiwi"}]}}
    assert with_renamed_words({"calls": [nested]}, renames) == {"calls": [changed]}
    assert with_renamed_words({"calls": None}, renames) == {"calls": None}
    # What is no list of calls is refused where it is read.
    assert with_renamed_words({"calls": "fig"}, renames) == {"calls": "fig"}
