"""The peers of bench_iteration.py: trainers of others with the same game and sizes.

bench_iteration_engines.py starts one of them, in the Python of its own environment.
"""

import dataclasses
import itertools
import math
import os
import queue
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_engines import THREADS
from bench_engines import Tunix as TunixModel
from bench_iteration_engines import POOL, RATE, Game, Sizes, Turns, begin, episodes

from dreamgym.envs.suites.textworld.express import TextWorldExpress


def hugging_face_tokenizer(directory: Path) -> Any:
    """Return the directory's tokenizer for a peer, which pads on the left."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"),
        pad_token="<|dg_pad|>",
        eos_token="<|dg_end|>",
        padding_side="left",
    )


class Trl:
    """TRL's GRPOTrainer with a rollout_func, as in docs/how-to/trl.md.

    All episodes take their turns together. The environment is in its process.
    """

    def __init__(self, directory: Path, sizes: Sizes, turns: Turns):
        os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(THREADS)
        self.sizes, self.turns = sizes, turns
        self.tokenizer = hugging_face_tokenizer(directory)
        self.model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32
        )
        self.games = [Game(max_steps=sizes.turns) for _ in range(sizes.episodes)]
        self.tasks = self.games[0].tasks("train")[:POOL]
        self.counts: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def sample(self, trainer: Any, contexts: list[list[int]]) -> list[list[int]]:
        """Return a turn of the full length for each conversation."""
        batch = self.tokenizer.pad({"input_ids": contexts}, return_tensors="pt")
        ids = trainer.model.generate(
            **batch.to(trainer.model.device),
            min_new_tokens=self.sizes.tokens,
            max_new_tokens=self.sizes.tokens,
            do_sample=True,
            temperature=trainer.temperature,
            top_k=0,
            top_p=1.0,
            eos_token_id=self.tokenizer.eos_token_id,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        return ids[:, batch["input_ids"].shape[1] :].tolist()

    def play(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """Play an episode for each prompt, which names a task by its number."""
        clock = self.turns.clock
        with clock.part("environment"):
            starts = [
                begin(game, self.tasks[int(prompt)])
                for game, prompt in zip(self.games, prompts, strict=True)
            ]
        prefixes = [self.encode(f"{text}\n> ") for text in starts]
        tails, masks = [[] for _ in prompts], [[] for _ in prompts]
        returns = [0.0] * len(prompts)
        for turn in range(self.sizes.turns):
            contexts = [h + t for h, t in zip(prefixes, tails, strict=True)]
            actions = self.sample(trainer, contexts)
            texts = self.tokenizer.batch_decode(actions, skip_special_tokens=True)
            with clock.part("environment"):
                steps = [g.step(t) for g, t in zip(self.games, texts, strict=True)]
            for i, (action, step) in enumerate(zip(actions, steps, strict=True)):
                last = turn + 1 == self.sizes.turns
                observed = [] if last else self.encode(f"\n{step[0]}\n> ")
                tails[i] += action + observed
                masks[i] += [1] * len(action) + [0] * len(observed)
                returns[i] += step[1]
        self.counts = {
            "turns": len(prompts) * self.sizes.turns,
            "sampled": sum(map(sum, masks)),
            "trained": sum(map(len, prefixes + tails)),
        }
        return {
            "prompt_ids": prefixes,
            "completion_ids": tails,
            "logprobs": None,
            "env_mask": masks,
            "env_reward": returns,
        }

    def run(self) -> None:
        """Train, an optimiser step for each line."""
        from datasets import Dataset
        from transformers import TrainerCallback
        from trl import GRPOConfig, GRPOTrainer

        turns, sizes, peer = self.turns, self.sizes, self

        class Gate(TrainerCallback):
            def on_train_begin(self, args, state, control, **_):
                del args, state
                control.should_training_stop = not turns.wait()

            def on_step_end(self, args, state, control, **_):
                del args, state
                turns.answer("update", **peer.counts)
                control.should_training_stop = not turns.wait()

        def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
            with turns.clock.part("rollout"):
                return self.play(prompts, trainer)

        passes = sizes.episodes // sizes.rows
        with tempfile.TemporaryDirectory() as directory:
            args = GRPOConfig(
                output_dir=directory,
                use_cpu=not self._has_accelerator(),
                bf16=False,
                num_generations=sizes.group,
                per_device_train_batch_size=sizes.rows,
                gradient_accumulation_steps=passes,
                max_completion_length=2**20,  # a whole episode: nothing is cut
                max_steps=10**6,
                learning_rate=RATE,
                shuffle_dataset=False,  # both families in turn
                logging_strategy="no",
                report_to="none",
                save_strategy="no",
                beta=0.0,
                disable_tqdm=True,
                gradient_checkpointing=False,
            )
            trainer = GRPOTrainer(
                model=self.model,
                processing_class=self.tokenizer,
                train_dataset=Dataset.from_list(
                    [{"prompt": str(n)} for n in range(len(self.tasks))]
                ),
                args=args,
                reward_funcs=lambda env_reward, **_: env_reward,
                rollout_func=rollout,
                callbacks=[Gate()],
            )
            trainer.train()

    @staticmethod
    def _has_accelerator() -> bool:
        import torch

        return torch.cuda.is_available()


class Tunix:
    """Tunix' agentic GRPOLearner with its vanilla rollout engine.

    Its engine samples one conversation a call; calls of several run in threads. Two
    things are added to it, without which it does other work: a turn has the token limit
    of a turn (the engine's own is what an episode has left, a new program for each
    value), and each call has a seed of its own (the engine's own is always the same,
    so that all members of a group would write the same). Conversations are padded to
    the longest one that may come, as its learner has it.
    """

    def __init__(self, directory: Path, sizes: Sizes, turns: Turns):
        self.sizes, self.turns = sizes, turns
        self.tokenizer = hugging_face_tokenizer(directory)
        self.loaded = TunixModel(directory)
        self.games: queue.Queue[Game] = queue.Queue()
        for _ in range(sizes.episodes):
            self.games.put(Game(max_steps=sizes.turns))
        self.tasks = TextWorldExpress().tasks("train")[:POOL]
        played = [[self.count(t) for t in e] for e in episodes(sizes, 40)]
        written = sizes.turns * sizes.tokens
        longest = 1.1 * max(sum(e[1:-1]) + 4 * len(e) for e in played)
        self.response = bucket(longest + written)
        self.prompt = bucket(1.1 * max(e[0] for e in played))
        # Each turn reads all texts again, padded to a power of two; a byte of noise
        # that is no character is then three tokens.
        text = self.prompt + self.response + 2 * written
        self.capacity = 2 ** math.ceil(math.log2(text)) + sizes.tokens

    def count(self, text: str) -> int:
        """Return the number of a text's tokens."""
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _cluster(self) -> Any:
        """Return the cluster: one mesh, on which actor and rollouts share weights."""
        import jax
        import optax
        from tunix.rl import rl_cluster
        from tunix.rl.rollout import base_rollout, vanilla_rollout

        config, sizes = self.loaded.config, self.sizes
        cache = base_rollout.CacheConfig(
            cache_size=self.capacity,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )

        class Rollout(vanilla_rollout.VanillaRollout):
            def __init__(self, rollout_actor, tokenizer, mesh, rollout_config):
                del mesh, rollout_config
                super().__init__(rollout_actor, tokenizer, cache)
                self.seeds = itertools.count()

            def generate(self, prompts, rollout_config, **more):
                limits = dataclasses.replace(
                    rollout_config,
                    max_tokens_to_generate=sizes.tokens,
                    seed=next(self.seeds),
                )
                return super().generate(prompts, limits, **more)

        mesh = jax.make_mesh(
            (1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2
        )
        roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.ROLLOUT)
        return rl_cluster.RLCluster(
            actor=self.loaded.model,
            tokenizer=self.tokenizer,
            cluster_config=rl_cluster.ClusterConfig(
                role_to_mesh={role: mesh for role in roles},
                rollout_engine=Rollout,
                training_config=rl_cluster.RLTrainingConfig(
                    actor_optimizer=optax.adamw(RATE),
                    eval_every_n_steps=10**9,
                    max_steps=10**9,
                    mini_batch_size=sizes.tasks,
                    train_micro_batch_size=sizes.rows // sizes.group,
                ),
                rollout_config=base_rollout.RolloutConfig(
                    max_tokens_to_generate=self.response,
                    max_prompt_length=self.prompt,
                    kv_cache_size=cache.cache_size,
                    temperature=1.0,
                    eos_tokens=[config.vocab_size + 1],  # never sampled
                    return_logprobs=True,
                ),
            ),
        )

    def _environment(self) -> type:
        """Return the class of Tunix' environments, which play the games."""
        from tunix.rl.agentic.environments import base_environment

        games, tasks = self.games, self.tasks

        class Environment(base_environment.BaseTaskEnv):
            def _initial_observation(self):
                self.game = games.get()
                return begin(self.game, tasks[int(self.task["prompts"][0])])

            def _step_impl(self, action):
                state, reward, *ends, info = self.game.step(action)
                return base_environment.EnvStepResult(
                    f"\n{state}", reward, any(ends), info
                )

            def close(self):
                games.put(self.game)

        return Environment

    def _parser(self) -> Any:
        """Return the parser that writes a conversation as TRL's peer does."""
        from tunix.rl.agentic.parser.chat_template_parser import parser

        class Plain(parser.BaseChatTemplateParser):
            def _init_tokens(self):
                return parser.TokenConfig()

            def _init_generation_prompt(self):
                return "\n> "

        return Plain(self.tokenizer)

    def _batches(self, cluster: Any) -> Iterator[dict[str, Any]]:
        """Yield the tasks of an iteration for each line; answer when it has ended."""
        import jax
        from flax import nnx

        sizes, numbers = self.sizes, itertools.cycle(range(len(self.tasks)))
        while self.turns.wait():
            self.counts = dict.fromkeys(("turns", "sampled", "trained"), 0)
            yield {"prompts": [str(n) for n in itertools.islice(numbers, sizes.tasks)]}
            jax.block_until_ready(nnx.state(cluster.actor_trainer.model))
            self.turns.answer("rollout", **self.counts)

    def run(self) -> None:
        """Train, a step of the learner for each line."""
        from tunix.rl.agentic import agentic_grpo_learner

        cluster = self._cluster()
        learner = agentic_grpo_learner.GRPOLearner(
            rl_cluster=cluster,
            algo_config=agentic_grpo_learner.GRPOConfig(
                num_generations=self.sizes.group,
                max_response_length=self.response,
                beta=0.0,
            ),
            chat_parser=self._parser(),
            env_class=self._environment(),
            env_kwargs={"max_steps": self.sizes.turns},
        )
        process, update = learner._process_results, cluster.update_actor

        def counted(trajectories: list[Any], *args: Any, **more: Any) -> Any:
            for item in trajectories:
                mask = item.traj["conversation_masks"]
                self.counts["sampled"] += int(mask.sum())
                self.counts["turns"] += int(mask.sum()) // self.sizes.tokens
                prompt = item.traj["prompt_tokens"] != self.tokenizer.pad_token_id
                self.counts["trained"] += len(mask) + int(prompt.sum())
            return process(trajectories, *args, **more)

        def timed(*args: Any, **more: Any) -> None:
            with self.turns.clock.part("update"):
                update(*args, **more)

        learner._process_results, cluster.update_actor = counted, timed
        learner.train(self._batches(cluster))


def bucket(count: float) -> int:
    """Return the next multiple of 64."""
    return math.ceil(count / 64) * 64


PEERS = {"trl": Trl, "tunix": Tunix}
