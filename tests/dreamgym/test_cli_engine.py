"""`generate`, `score` and `fetch` at the command line."""

import json

import numpy as np
import pytest

from dreamgym import cli
from tests import helpers
from worldmodel.backbone import weights
from worldmodel.text.tokenizer import Vocabulary


@pytest.fixture(scope="module")
def directory(tmp_path_factory, tok, text_model):
    root = tmp_path_factory.mktemp("model")
    weights.save_model(root, text_model, tok)
    settings = {"chat_template": "{{ 'say ' + messages[0]['content'] + '!' }}"}
    (root / "tokenizer_config.json").write_text(json.dumps(settings))
    return root


def run(capsys, *args):
    status = cli.main([str(a) for a in args])
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    return status, output.out, output.err


def generated(capsys, directory, *more):
    args = ("--prompt", "the lamp", "--max-tokens", 12, "--json", *more)
    status, out, err = run(capsys, "generate", "--model", directory, *args)
    assert status == 0, err
    return json.loads(out)


@pytest.mark.medium
def test_greedy_text_is_that_of_a_full_pass(capsys, directory, text_model):
    done = generated(capsys, directory, "--temperature", 0, "--ignore-eos")
    ids = list(done["prompt_ids"])
    assert ids == Vocabulary.load(directory).encode("the lamp")
    for token, logp in zip(done["ids"], done["logprobs"], strict=True):
        row = helpers.log_softmax(helpers.full_pass(text_model, ids)[-1])
        assert row[token] > row.max() - 1e-4
        np.testing.assert_allclose(row[token], logp, atol=1e-4)
        ids.append(token)
    assert done["finish"] == "length"
    assert done["text"] == Vocabulary.load(directory).decode(done["ids"], controls=True)


@pytest.mark.medium
def test_a_seed_decides_and_cuts_cut(capsys, directory):
    one, same, other = (
        generated(capsys, directory, "--seed", s, "--ignore-eos") for s in (1, 1, 2)
    )
    assert one == same
    assert one["ids"] != other["ids"]
    best = generated(capsys, directory, "--top-k", 1, "--ignore-eos")
    assert (
        best["ids"]
        == generated(capsys, directory, "--temperature", 0, "--ignore-eos")["ids"]
    )
    np.testing.assert_allclose(best["logprobs"], 0.0, atol=1e-6)


@pytest.mark.medium
def test_text_alone_and_stop_strings(capsys, directory):
    whole = generated(capsys, directory, "--ignore-eos")["text"]
    args = ("--prompt", "the lamp", "--max-tokens", 12, "--ignore-eos")
    status, out, _ = run(capsys, "generate", "--model", directory, *args)
    assert (status, out) == (0, whole + "\n")
    done = generated(capsys, directory, "--ignore-eos", "--stop", whole[4:7])
    assert done["finish"] == "string"
    assert done["text"] == whole[: whole.index(whole[4:7])]


def test_controls_and_templates_are_asked_for(capsys, directory):
    vocabulary = Vocabulary.load(directory)
    end = vocabulary.added["<|dg_end|>"]
    base = ("generate", "--model", directory, "--max-tokens", 1, "--json", "--prompt")
    for more, count in (((), 0), (("--controls",), 1)):
        _, out, _ = run(capsys, *base, "go <|dg_end|>", *more)
        assert json.loads(out)["prompt_ids"].count(end) == count
    _, out, _ = run(capsys, *base, "go", "--chat")
    assert json.loads(out)["prompt_ids"] == vocabulary.encode("say go!")


def test_scores_line_by_line(capsys, directory, text_model, tmp_path):
    lines = ["the lamp is off", "", "go", "  ünïcode 🙂 \r", "last, no newline"]
    path = tmp_path / "lines.txt"
    path.write_bytes("\n".join(lines).encode())
    status, out, err = run(capsys, "score", "--model", directory, path)
    assert status == 0, err
    results = [json.loads(line) for line in out.splitlines()]
    vocabulary = Vocabulary.load(directory)
    assert [f["line"] for f in results] == [1, 2, 3, 4, 5]
    for text, row in zip(lines, results, strict=True):
        ids = vocabulary.encode(text)
        assert row["ids"] == ids
        assert row["tokens"] == len(ids)
        if len(ids) > 1:
            table = helpers.log_softmax(helpers.full_pass(text_model, ids))
            want = table[np.arange(len(ids) - 1), ids[1:]]
            np.testing.assert_allclose(row["logprobs"], want, atol=1e-4)
            np.testing.assert_allclose(row["logprob"], want.sum(), atol=1e-3)
        else:
            assert (row["logprob"], row["logprobs"]) == (0.0, [])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--prompt", ""), "at least one token"),
        (("--prompt", "a", "--max-tokens", "0"), "--max-tokens must be >= 1, got 0"),
        (
            ("--prompt", "a", "--temperature", "-1"),
            "temperature and top_k must be >= 0",
        ),
        (("--prompt", "a", "--mesh", "rows=2"), "a mesh is written as"),
        (("--prompt", "a", "--mesh", "data=64"), "needs 64 devices"),
        (("--prompt", "a", "--max-tokens", "5000"), "exceed the 4096 positions"),
    ],
)
def test_bad_input_is_one_line(capsys, directory, args, message):
    status, out, err = run(capsys, "generate", "--model", directory, *args)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_missing_places_are_named(capsys, directory, tmp_path):
    status, _, err = run(capsys, "generate", "--model", tmp_path, "--prompt", "a")
    assert status == 2
    assert "expected a Hugging Face model directory" in err
    status, _, err = run(capsys, "score", "--model", directory, tmp_path / "no.txt")
    assert status == 2
    assert "no.txt" in err
    (tmp_path / "binary").write_bytes(b"fine\n\xff\xfe\n")
    status, _, err = run(capsys, "score", "--model", directory, tmp_path / "binary")
    assert status == 2
    assert "utf-8" in err
    status, _, err = run(capsys, "fetch", "gpt2")
    assert status == 2
    assert "have ['smollm2']" in err
