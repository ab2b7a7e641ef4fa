"""The settings of the local experience model, and the grammar of its replies.

ExperienceConfig, tokenizer -> a Grammar: the phases of a reply or of a variation, the
tokens that each may hold, those that end it, and its maximal length.
"""

import numpy as np

from worldmodel.backbone.grammar import Grammar
from worldmodel.data.outcomes import OUTCOMES
from worldmodel.experience.config import ExperienceConfig
from worldmodel.text.tokenizer import MAX_LINES, TextTokenizer

REWARD, OUTCOME = 2, 3
"""Phases of a reply's grammar."""


REWARD_TOKENS = 8
"""Tokens for a reward in a reply, where the data do not need more."""


def reply_grammar(
    tok: TextTokenizer, config: ExperienceConfig, reward_tokens: int = REWARD_TOKENS
) -> Grammar:
    """Return the grammar: reasoning next edits reward number outcome.

    A reply of this grammar can always be parsed; a reward such as `1-1` is no number
    and makes it an error (parse_reply). State and reward may be one token longer than
    their limit: a phase that is closed there was cut.
    """
    c, size = tok.control, tok.vocab_size
    text, number = tok.text_mask() | tok.reference_mask(), tok.number_mask()

    def tokens(*names: str) -> np.ndarray:
        mask = np.zeros(size, bool)
        mask[[c(n) for n in names]] = True
        return mask

    openers = tokens("add", "full", *(f"line{i}" for i in range(MAX_LINES)))
    same = tokens("same", "swap", "with")
    outcomes = tokens(*OUTCOMES)
    thought = text if config.reasoning else tokens()
    start = openers | tokens("reward")  # no edit: nothing changes
    if config.full_state:
        openers, same, start = tokens("full"), tokens(), tokens("full")
    allowed = [
        thought | tokens("next"),
        text | openers | same | tokens("reward"),
        number | tokens("outcome"),
        outcomes,
    ]
    first = [allowed[0], start, number, outcomes]
    # The last phase is closed by any outcome: it is one token long.
    closing_tokens = [tokens("next"), tokens("reward"), tokens("outcome"), outcomes]
    t = config.temperature
    return Grammar(
        np.stack(allowed),
        np.stack(first),
        np.stack(closing_tokens),
        np.array([c("next"), c("reward"), c("outcome"), c("go")], np.int32),
        np.array(
            [config.reasoning_tokens, config.state_tokens + 1, reward_tokens + 1, 1],
            np.int32,
        ),
        # Reward and outcome are taken greedily; how likely they were is read from the
        # logits.
        np.array([t, t, 0.0, 0.0], np.float32),
        np.array([config.reasoning_min_p, config.state_min_p, 0.0, 0.0], np.float32),
    )


def variation_grammar(
    tok: TextTokenizer,
    config: ExperienceConfig,
    instruction_tokens: int,
    state_tokens: int,
    *,
    has_instruction: bool = True,
) -> Grammar:
    """Return the grammar: instruction state lines end.

    Args:
      instruction_tokens: those of an instruction, at most; `state_tokens` those of the
        lines of a state with their numbers. Where more are needed, the tokens that
        close them are forced.
      has_instruction: whether an instruction has at least one token.
    """
    c, size = tok.control, tok.vocab_size
    text = tok.text_mask()
    allowed, first = np.stack([text, text]), np.zeros((2, size), bool)
    closing_tokens = np.zeros((2, size), bool)
    allowed[0, c("state")] = closing_tokens[0, c("state")] = True
    allowed[1, [c(f"line{i}") for i in range(MAX_LINES)] + [c("end")]] = True
    closing_tokens[1, c("end")] = True
    first[0], first[1, c("line0")] = text, True
    first[0, c("state")] = not has_instruction
    return Grammar(
        allowed,
        first,
        closing_tokens,
        np.array([c("state"), c("end")], np.int32),
        np.array([instruction_tokens, state_tokens], np.int32),
        np.full(2, config.temperature, np.float32),
        np.full(2, config.reasoning_min_p, np.float32),
    )
