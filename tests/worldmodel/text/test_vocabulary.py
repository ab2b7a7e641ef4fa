"""A directory's own tokenizer: raw text, control tokens only where asked for."""

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, processors

from tests import helpers
from worldmodel.data.json_reading import RecordError
from worldmodel.text.tokenizer import TextTokenizer, Vocabulary

TEXT = st.text(st.characters(blacklist_categories=("Cs",)), max_size=40)
CONTROLS = ["<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A byte-level BPE with special and other added tokens, and a BOS of its own."""
    root = tmp_path_factory.mktemp("tokenizer")
    core = Tokenizer.from_str(helpers.tokenizer()._core.to_str())
    core.add_special_tokens([AddedToken(c, special=True) for c in CONTROLS])
    core.add_tokens([AddedToken("<think>", special=False)])
    bos = core.token_to_id(CONTROLS[0])
    core.post_processor = processors.TemplateProcessing(
        single=f"{CONTROLS[0]} $A", special_tokens=[(CONTROLS[0], bos)]
    )
    core.enable_truncation(5)
    core.save(str(root / "tokenizer.json"))
    (root / "config.json").write_text(
        json.dumps({"eos_token_id": 7, "bos_token_id": None})
    )
    (root / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    (root / "chat_template.jinja").write_text("{{ 2 }}")
    return root


@given(text=TEXT)
@example(text="<|im_end|><think></think><|im_start|>")
@example(text=" <|im_end|> ")
@example(text="\n\r\t\x00\u2028\ufeff")
@example(text="a\u0301 🙂👩‍🚀 ﷽")
@example(text="a much longer text than five tokens would hold, again and again")
def test_text_is_never_control(directory, text):
    vocabulary = Vocabulary.load(directory)
    ids = vocabulary.encode(text)
    assert not set(ids) & set(vocabulary.added.values())
    assert vocabulary.decode(ids) == vocabulary.decode(ids, controls=True) == text


def test_controls_by_their_names(directory):
    vocabulary = Vocabulary.load(directory)
    start, end = (vocabulary.added[c] for c in CONTROLS)
    ids = vocabulary.encode("<|im_start|>a<|im_end|>", controls=True)
    assert ids == [start, *vocabulary.encode("a"), end]
    assert vocabulary.decode(ids) == "a"
    assert vocabulary.decode(ids, controls=True) == "<|im_start|>a<|im_end|>"
    assert vocabulary.piece(end) == "<|im_end|>"


def test_ends_and_templates_of_a_directory(directory, tmp_path):
    vocabulary = Vocabulary.load(directory)
    assert vocabulary.ends == {"bos": [], "eos": [7, 9], "pad": []}
    assert vocabulary.chat_template == "{{ 2 }}"
    vocabulary.save(tmp_path)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"tokenizer.json", "chat_template.jinja", "generation_config.json"}
    several = [
        {"name": "tool_use", "template": "a"},
        {"name": "default", "template": "b"},
    ]
    (tmp_path / "chat_template.jinja").unlink()
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"chat_template": several}))
    assert Vocabulary.load(tmp_path).chat_template == "b"
    for damaged in ('{"chat_template": 3}', "[]", '{"chat_template": ['):
        path.write_text(damaged)
        with pytest.raises(RecordError, match=re.escape(f"{path}: expected a chat")):
            _ = Vocabulary.load(tmp_path).chat_template
    path.unlink()
    assert Vocabulary.load(tmp_path).chat_template is None


def test_our_grammar_on_a_foreign_tokenizer(directory):
    tok = TextTokenizer.load(directory)
    text = "<think> <|im_end|> <|dg_end|>"
    assert tok.decode(tok.encode(text)) == text
    foreign = Vocabulary.load(directory).added
    mask = tok.text_mask()
    assert not mask[list(foreign.values())].any()  # nor are they sampled as text
    assert mask[tok.encode(text)].all()


def test_a_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        Vocabulary.load(tmp_path)


# --- directories without a tokenizer.json ------------------------------------


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    """The same byte-level BPE in two files, as Qwen2 and GPT-2 have it."""
    root = tmp_path_factory.mktemp("older")
    model = json.loads(helpers.tokenizer()._core.to_str())["model"]
    pairs = [m.split() if isinstance(m, str) else m for m in model["merges"]]
    (root / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = ["#version: 0.2", *(" ".join(p) for p in pairs)]
    (root / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (root / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    return root


@pytest.mark.parametrize(
    "text", ["the lamp is off", " press  lamp\n", "<|im_end|> é🙂"]
)
def test_older_files_are_read_as_their_family_has_them(older, tmp_path, text):
    import transformers

    vocabulary = Vocabulary.load(older)
    theirs = transformers.AutoTokenizer.from_pretrained(older)
    ids = vocabulary.encode(text)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert vocabulary.decode(ids) == text
    # Written back as the one file that everything reads.
    vocabulary.save(tmp_path)
    assert (tmp_path / "tokenizer.json").is_file()
    assert Vocabulary.load(tmp_path).encode(text) == ids
    # Our control tokens stand behind its own.
    ours = TextTokenizer.load(older)
    assert ours.control("end") >= vocabulary.vocab_size
    assert ours.decode(ours.encode(text)) == text


def test_older_files_that_are_damaged_are_named(older, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected a Hugging Face tokenizer"):
        Vocabulary.load(tmp_path)
    (tmp_path / "config.json").write_bytes((older / "config.json").read_bytes())
    (tmp_path / "vocab.json").write_text("{")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(RecordError, match=r"vocab\.json: no tokenizer"):
        Vocabulary.load(tmp_path)
