"""Text in, text out: stops, log-probabilities and scores."""

import jax
import numpy as np
import pytest

from tests import helpers
from worldmodel.backbone.grammar import free_grammar
from worldmodel.completion import complete, score
from worldmodel.text.tokenizer import Vocabulary


@pytest.fixture(scope="module")
def vocabulary(tok, tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizer")
    tok.save(root)
    return Vocabulary.load(root)


def run(model, vocabulary, texts, *, temperature=1.0, seed=0, most=40, **options):
    stop = options.pop("stop", [])
    grammar = free_grammar(vocabulary.vocab_size, stop=stop, temperature=temperature)
    prompts = [vocabulary.encode(t) for t in texts]
    keys = jax.random.split(jax.random.key(seed), len(texts))
    return complete(
        model, vocabulary, prompts, grammar, keys, max_tokens=most, **options
    )


def test_log_probabilities_are_those_of_a_score(text_model, vocabulary):
    (done,) = run(text_model, vocabulary, ["the lamp"], most=20)
    assert (done.finish, len(done.ids)) == ("length", 20)
    (result,) = score(text_model, [done.prompt_ids + done.ids])
    at = len(done.prompt_ids)
    np.testing.assert_allclose(result.logp[at:], done.logp, atol=1e-4)
    assert result.logp[0] == 0.0
    # And those of a full pass.
    logits = helpers.full_pass(text_model, done.prompt_ids + done.ids)
    want = helpers.log_softmax(logits)[np.arange(at - 1, at + 19), done.ids]
    np.testing.assert_allclose(done.logp, want, atol=1e-4)


def test_a_stop_token_ends_the_text(text_model, vocabulary):
    (free,) = run(text_model, vocabulary, ["the lamp"])
    stop = free.ids[7]
    (done,) = run(text_model, vocabulary, ["the lamp"], stop=[stop])
    n = free.ids.index(stop) + 1
    assert done.finish == "stop"
    assert done.ids == free.ids[:n]
    assert done.text == vocabulary.decode(free.ids[: n - 1], controls=True)


@pytest.mark.medium
def test_a_stop_string_ends_the_text(text_model, vocabulary):
    texts = ["the lamp", "pull", "go"]
    free = run(text_model, vocabulary, texts)
    whole = free[1].text
    at = next(i for i in range(5, len(whole)) if whole.count(whole[i : i + 2]) == 1)
    string = whole[at : at + 2]
    assert string not in free[0].text
    done = run(text_model, vocabulary, texts, stop_strings=[string, "\x00never"])
    # In pieces of 16 tokens, and whatever the others do.
    assert (done[0].ids, done[0].finish) == (free[0].ids, "length")
    assert done[1].finish == "string"
    assert done[1].text == whole[:at]
    n = len(done[1].ids)
    assert done[1].ids == free[1].ids[:n]
    assert string in vocabulary.decode(free[1].ids[:n], controls=True)
    assert string not in vocabulary.decode(free[1].ids[: n - 1], controls=True)


def test_a_seed_decides_a_text_whatever_else_is_in_the_batch(text_model, vocabulary):
    one = run(text_model, vocabulary, ["the lamp", "pull door", "go"])
    two = run(text_model, vocabulary, ["the lamp", "go through the door now", "0"])
    assert one[0] == two[0]
    assert one[0] != run(text_model, vocabulary, ["the lamp", "x", "y"], seed=1)[0]
    cold = [
        run(text_model, vocabulary, ["go"], temperature=0.0, seed=s) for s in (0, 1)
    ]
    assert cold[0] == cold[1]


def test_scores_of_many_lines_are_those_of_each(text_model, vocabulary):
    texts = ["the lamp is off", "", "a", "x " * 60, *(f"door {i}" for i in range(8))]
    lines = [vocabulary.encode(t) for t in texts]
    together = list(score(text_model, lines))
    assert [s.ids for s in together] == lines
    assert together[1].logp == []
    assert together[2].logp == [0.0]
    for line, item in zip(lines, together, strict=True):
        if line:
            (alone,) = score(text_model, [line])
            np.testing.assert_allclose(item.logp, alone.logp, atol=1e-4)


def test_what_does_not_fit_is_an_error(text_model, vocabulary):
    with pytest.raises(ValueError, match="at least one token"):
        run(text_model, vocabulary, [""])
    with pytest.raises(ValueError, match="1 tokens and 4096 more exceed the 4096"):
        run(text_model, vocabulary, ["a"], most=4096)
    with pytest.raises(ValueError, match="stop string must not be empty"):
        run(text_model, vocabulary, ["a"], stop_strings=[""])
    size, keys = text_model.config.vocab_size, jax.random.split(jax.random.key(0), 2)
    rest = free_grammar(size), keys
    with pytest.raises(ValueError, match="3 prompts need a key each, got 2"):
        complete(text_model, vocabulary, [[1], [2], [3]], *rest, max_tokens=2)
    with pytest.raises(ValueError, match=rf"prompt 2: ids must be 0 to {size - 1}"):
        complete(text_model, vocabulary, [[1], [size]], *rest, max_tokens=2)
    with pytest.raises(ValueError, match=r"line 1: ids must be .*, got \[-5\]"):
        list(score(text_model, [[1, -5]]))
    with pytest.raises(ValueError, match="line 2: 4097 tokens exceed the 4096"):
        list(score(text_model, [[1], [1] * 4097]))
    for bad in ({"temperature": -1.0}, {"top_p": 0.0}, {"min_p": 2.0}, {"top_k": -1}):
        with pytest.raises(ValueError, match="temperature and top_k must be >= 0"):
            free_grammar(9, **bad)
    with pytest.raises(ValueError, match=r"stop ids must be below 9, got \[9\]"):
        free_grammar(9, stop=[9])


def test_a_decoder_that_drops_the_first_space():
    # Llama 2's way: spaces as metaspaces, the first of a text left out when decoded.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from worldmodel.completion import _text

    words = ["\u2581a", "\u2581b", "a", "b"]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "a"))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    vocabulary = Vocabulary(core, {}, {"bos": [], "eos": [], "pad": []})
    assert vocabulary.decode([1, 0]) == "b a"
    assert _text(vocabulary, [0], [1, 0], "length", []) == " b a"
    assert _text(vocabulary, [0], [1, 0], "stop", []) == " b"
    assert _text(vocabulary, [0], [1, 0], "string", [" a"]) == " b"
