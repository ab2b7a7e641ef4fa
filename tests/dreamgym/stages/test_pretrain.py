"""The fit of the experience model: does the tokenizer of a model fit the texts?"""

import pytest
import tokenizers

from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from dreamgym.stages.table import STAGES
from tests import helpers
from worldmodel.backbone.weights import save_model
from worldmodel.text.tokenizer import TextTokenizer

SHORT = {
    "env.id": "tests.doubles:Corridor",
    "pretrain.fit.steps": 1,
    "pretrain.fit.eval_every": 1,
}


def pretrained(root, **settings):
    """Return the numbers of a run's stage, after one update of its fit."""
    with Run(root, preset("tiny", SHORT | settings)) as run:
        for name in ("collect", "pretrain"):
            run.stage(name, lambda name=name: STAGES[name].body(run))
        return run.numbers("pretrain")


@pytest.mark.medium
def test_a_tokenizer_without_the_words_is_warned_of(tmp_path, capsys):
    words = {"<unk>": 0, "you": 1}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tok = TextTokenizer(core)
    save_model(
        tmp_path / "m", helpers.lively_model(helpers.config(tok.vocab_size)), tok
    )
    numbers = pretrained(tmp_path / "run", model=str(tmp_path / "m"))
    assert numbers["unwritable_texts"] > 0.5
    error = capsys.readouterr().err
    assert "the model's tokenizer cannot write" in error
    assert "<unk>" in error


@pytest.mark.medium
def test_a_tokenizer_that_was_trained_on_the_texts_is_not(tmp_path, capsys):
    assert "unwritable_texts" not in pretrained(tmp_path / "run")
    assert "cannot write" not in capsys.readouterr().err
