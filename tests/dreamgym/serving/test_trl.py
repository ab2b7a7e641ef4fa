"""TRL's GRPO trainer makes updates in a served dream and in a served environment.

The code is that of docs/how-to/trl.md. PyTorch on a CPU, a model of 0.2 M parameters,
nothing from a hub.
"""

import copy
import importlib.resources
import re
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("trl", reason="the package trl is not installed")

from dreamgym.serving.worlds import real_world
from tests import doubles
from tests.dreamgym.serving.common import running, running_dream

pytestmark = [pytest.mark.peer, pytest.mark.slow]
PAGE = Path(__file__).parents[3] / "docs/how-to/trl.md"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def code_of(name):
    """The names that a code block of the page defines."""
    text = PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(rf"```python\n# {name}\n(.*?)```", text, re.DOTALL)
    names = {"__name__": name}
    exec(compile(block, name, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "TRL_EXPERIMENTAL_SILENCE", "WANDB_DISABLED"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


def call(action):
    body = f'{{"name": "act", "arguments": {{"action": "{action}"}}}}'
    return f"<tool_call>\n{body}\n</tool_call>"


@pytest.fixture(scope="module")
def tok():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    letters = pre_tokenizers.ByteLevel.alphabet()
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    corpus = [call(a) for a in doubles.ACTIONS] * 20
    corpus += ["\n".join(doubles.start_state(1, 2, 3))] * 20
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=letters,
        show_progress=False,
    )
    bare.train_from_iterator(corpus, trainer)
    out = PreTrainedTokenizerFast(
        tokenizer_object=bare,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
    )
    out.add_tokens(ADDED)
    template = importlib.resources.files("trl") / "chat_templates/qwen3.jinja"
    out.chat_template = template.read_text()
    return out


def blank_model(tok):
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen2Config(
        vocab_size=len(tok),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


def imitate(model, tok, pairs, steps):
    """Teach the model to write these replies at all."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    rows = [
        (p, tok(c, add_special_tokens=False)["input_ids"] + [tok.eos_token_id])
        for p, c in pairs
    ]
    width = max(len(p) + len(c) for p, c in rows)
    ids = torch.full((len(rows), width), tok.pad_token_id)
    labels = torch.full((len(rows), width), -100)
    for i, (p, c) in enumerate(rows):
        ids[i, : len(p) + len(c)] = torch.tensor(p + c)
        labels[i, len(p) : len(p) + len(c)] = torch.tensor(c)
    mask = (ids != tok.pad_token_id).long()
    for _ in range(steps):
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def settings(folder, **more):
    from trl import GRPOConfig

    common = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_steps": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "beta": 0.0,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    }
    return GRPOConfig(**(common | more))


def weights(model):
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def changed(model, before):
    return any((v != before[k]).any() for k, v in model.state_dict().items())


def served(kind, **limits):
    """Serve the dream of the corridor, or the corridor itself, within a block."""
    if kind == "dream":
        return running_dream(**limits)
    return running(real_world("tests.doubles:Corridor"), **limits)


def text_updates(url, tok, folder):
    from datasets import Dataset
    from trl import GRPOTrainer

    names, model = code_of("dream_rollouts.py"), blank_model(tok)
    state = "\n".join(doubles.start_state(1, 2, 3))
    prompt = tok(f"Play seed 1.\n{state}\n> ", add_special_tokens=False)["input_ids"]
    imitate(model, tok, [(prompt, action) for action in doubles.ACTIONS], 40)
    before, seen = weights(model), []
    play = names["make_rollout"](url, tok, turns=6)

    def rollout(prompts, trainer):
        out = play(prompts, trainer)
        seen.append((prompts, out))
        return out

    rows = [{"prompt": f"Play seed {n % 4}."} for n in range(16)]
    trainer = GRPOTrainer(
        model=model,
        processing_class=tok,
        train_dataset=Dataset.from_list(rows),
        args=settings(folder, max_completion_length=400),
        reward_funcs=names["episode_return"],
        rollout_func=rollout,
    )
    trainer.train()
    assert trainer.state.global_step == 2
    return changed(model, before), seen


@pytest.mark.parametrize("kind", ["dream", "real"])
def test_text_updates_in_either_world_through_the_same_code(kind, tok, tmp_path):
    with served(kind) as server:
        moved, seen = text_updates(server.url, tok, tmp_path)
        server.wait_for_sessions(0)
        begun = server.metric("dreamgym_episodes_begun_total")
    prompts, out = seen[0]
    assert begun == sum(len(p) for p, _ in seen)
    assert any(len(set(o["env_reward"])) > 1 for _, o in seen)
    assert moved
    # A group begins in one state, and its tokens are masked where the policy sampled.
    heads = dict(zip(prompts, map(tuple, out["prompt_ids"]), strict=True))
    for prompt, head in zip(prompts, out["prompt_ids"], strict=True):
        assert heads[prompt] == tuple(head)
    for ids, mask in zip(out["completion_ids"], out["env_mask"], strict=True):
        assert len(ids) == len(mask)
        assert 0 < sum(mask) <= 6 * 8


def test_an_episode_that_breaks_has_no_reward(tok):
    from types import SimpleNamespace

    names = code_of("dream_rollouts.py")
    model = blank_model(tok)
    broken = doubles.RuleModel()
    broken._one = lambda query: doubles.RuleModel(broken=[query.action])._one(query)
    from tests.dreamgym.serving.common import dream

    with running_dream(dream(broken)) as server:
        trainer = SimpleNamespace(model=model, temperature=1.0)
        out = names["make_rollout"](server.url, tok)(["Play seed 3."] * 2, trainer)
    assert out["env_reward"] == [None, None]


@pytest.fixture(scope="module")
def caller(tok):
    """A model that calls the tool at random where seed 1 begins."""
    from transformers.utils import get_json_schema

    model = blank_model(tok)
    schema = get_json_schema(code_of("dream_tools.py")["Dream"].act)
    schema["function"]["parameters"]["properties"].pop("self", None)
    # The room of the coin: one call of three wins, and groups of four differ.
    state = "take the coin\n" + "\n".join(doubles.start_state(2, 2, 5))
    prompt = tok.apply_chat_template(
        [{"role": "user", "content": state}],
        tools=[schema],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    imitate(model, tok, [(prompt, call(action)) for action in doubles.ACTIONS], 120)
    return model


def tool_updates(url, tok, model, folder):
    from datasets import Dataset
    from trl import GRPOTrainer

    names, before = code_of("dream_tools.py"), weights(model)
    names["Dream"].__init__.__globals__["URL"] = url
    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": 1}] * 16
    trainer = GRPOTrainer(
        model=model,
        processing_class=tok,
        train_dataset=Dataset.from_list(rows),
        args=settings(folder, max_completion_length=200, max_tool_calling_iterations=2),
        environment_factory=names["Dream"],
    )
    trainer.train()
    assert trainer.state.global_step == 2
    for environment in trainer.environments:
        environment._socket.__exit__(None, None, None)
    return changed(model, before)


@pytest.mark.parametrize("kind", ["dream", "real"])
def test_tool_calls_update_in_either_world_through_the_same_code(
    kind, tok, caller, tmp_path
):
    model = copy.deepcopy(caller)
    with served(kind, max_sessions=16) as server:
        moved = tool_updates(server.url, tok, model, tmp_path)
        server.wait_for_sessions(0)
        steps = server.metric("dreamgym_step_seconds_count")
        begun = server.metric("dreamgym_episodes_begun_total")
    assert moved
    assert begun >= 8
    assert steps >= 4
