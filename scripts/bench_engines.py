"""One engine in a process of its own, told what to do line by line.

    python scripts/bench_engines.py NAME MODEL_DIR

reads JSON objects such as {"do": "sample", "batch": 8, "prompt": 128, "new": 64} and
answers each with one. The benchmarks start one process an engine and let them take
turns, so that a busy machine slows all sides. Only the named engine is imported: a
peer may live in another environment.
"""

import concurrent.futures
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def prompts(batch: int, length: int, vocab: int, seed: int = 0) -> np.ndarray:
    """Return random ids [B, T], equal in every engine; the first are mostly control."""
    low = min(32, vocab // 2)
    return np.random.default_rng(seed).integers(low, vocab, (batch, length))


def timed(work: Any) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Dreamgym:
    """This project."""

    def __init__(self, directory: Path, dtype: str = "float32"):
        import jax

        from dreamgym.run.process import tune_process
        from worldmodel.backbone.weights import load_decoder

        tune_process()
        self.jax, self.dtype = jax, dtype
        self.model = load_decoder(directory, dtype=dtype)
        self.vocab = self.model.config.vocab_size
        self._training: Any = None

    def about(self) -> dict[str, Any]:
        """Return the sizes for the roofline."""
        leaves = self.jax.tree.leaves(self.model.params)
        c = self.model.config
        table = self.vocab * c.hidden_size
        return {
            "parameters": sum(x.size for x in leaves),
            "bytes": sum(x.nbytes for x in leaves),
            # Of a token: every matrix but an embedding that is only looked up.
            "multiplied": sum(x.size for x in leaves if x.ndim > 1)
            - (0 if c.tie_word_embeddings else table),
            "device": self.jax.devices()[0].device_kind,
            "jax": self.jax.__version__,
        }

    def rates(self) -> dict[str, float]:
        """Measure this machine's best rates: of a matrix product, a copy and a sum."""
        jnp, jit = self.jax.numpy, self.jax.jit
        side = 2048 if self.jax.default_backend() == "cpu" else 8192
        x = jnp.ones((side, side), self.dtype)
        long = jnp.ones(64 << 20, "float32")
        product, total = jit(lambda a: a @ a), jit(lambda a: a.sum())
        copy = jit(lambda a: -a, donate_argnums=0)  # read and written where it lies
        best = {"matrix": np.inf, "copy": np.inf, "read": np.inf}
        for turn in range(4):
            one = timed(lambda: product(x).block_until_ready())
            two = timed(lambda x=long: total(x).block_until_ready())
            start = time.perf_counter()
            long = copy(long).block_until_ready()
            three = time.perf_counter() - start
            if turn:
                best["matrix"] = min(best["matrix"], one)
                best["read"] = min(best["read"], two)
                best["copy"] = min(best["copy"], three)
        return {
            "matrix_flops": 2.0 * side**3 / best["matrix"],
            "copy_bytes": 2.0 * long.nbytes / best["copy"],
            "read_bytes": long.nbytes / best["read"],
        }

    def sample(self, batch: int, prompt: int, new: int, seed: int) -> dict[str, float]:
        """Prefill a batch, then sample at temperature 1."""
        from worldmodel.backbone.grammar import free_grammar
        from worldmodel.backbone.streams import Streams

        ids = prompts(batch, prompt, self.vocab).tolist()
        keys = self.jax.random.split(self.jax.random.key(seed), batch)
        grammar = free_grammar(self.vocab)
        start = time.perf_counter()
        streams = Streams(self.model, batch, prompt + new)
        streams.append(ids, columns=prompt)
        streams.sample(grammar, keys, max_tokens=1)
        first = time.perf_counter() - start
        streams.sample(grammar, keys, max_tokens=new - 1, resume=True)
        return {"first": first, "total": time.perf_counter() - start}

    def turns(
        self, batch: int, turns: int, append: int, new: int, only: list[int]
    ) -> dict[str, list[float]]:
        """Return the seconds of each turn of a conversation whose cache is reused."""
        from worldmodel.backbone.grammar import free_grammar
        from worldmodel.backbone.streams import Streams

        del only  # to reach a turn the ones before are taken anyway
        keys = self.jax.random.split(self.jax.random.key(0), batch)
        grammar, out = free_grammar(self.vocab), []
        streams = Streams(self.model, batch, turns * (append + new))
        for turn in range(turns):
            ids = prompts(batch, append, self.vocab, seed=turn).tolist()
            start = time.perf_counter()
            streams.append(ids, columns=append)
            streams.sample(grammar, keys, max_tokens=new)
            out.append(time.perf_counter() - start)
        return {"seconds": out}

    def train(self, rows: int, width: int, remat: bool) -> dict[str, float]:
        """Make an AdamW step on rows of random ids, every token a target."""
        from worldmodel.fitting.batches import Example, pack
        from worldmodel.fitting.config import ComputeConfig, OptimizerConfig
        from worldmodel.fitting.learner import Learner
        from worldmodel.fitting.losses import cross_entropy, read_logp

        def loss(output: Any, batch: Any) -> Any:
            logp = read_logp(output, batch.ids)
            return cross_entropy(logp, batch.mask, batch.weight), {}

        if self._training is None:
            config = OptimizerConfig(
                learning_rate=1e-5, warmup_steps=0, max_grad_norm=1e9
            )
            compute = ComputeConfig(dtype=self.dtype, remat=remat)
            learner = Learner(self.model, config, loss, compute, steps=1000)
            self._training = [learner, learner.init(copy=False)]
        ids = prompts(rows, width, self.vocab).tolist()
        batch = pack([Example(i, [True] * width, [0] * width) for i in ids], width)
        start = time.perf_counter()
        self._training[1], metrics = self._training[0].update(
            self._training[1], [batch]
        )
        value = float(metrics["loss"].value())
        self.jax.block_until_ready(self._training[1].params)
        return {"seconds": time.perf_counter() - start, "loss": value}


class Transformers:
    """Transformers' generate and a plain PyTorch training step."""

    def __init__(self, directory: Path, dtype: str = "float32"):
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(THREADS)
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=getattr(torch, dtype)
        ).to(self.device)
        self.vocab = self.model.config.vocab_size
        self._optimizer: Any = None

    def _ids(self, batch: int, length: int, seed: int = 0) -> Any:
        ids = self.torch.tensor(prompts(batch, length, self.vocab, seed))
        return ids.to(self.device)

    def _generate(self, ids: Any, new: int) -> Any:
        return self.model.generate(
            input_ids=ids,
            attention_mask=self.torch.ones_like(ids),
            do_sample=True,
            max_new_tokens=new,
            min_new_tokens=new,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
        )

    def sample(self, batch: int, prompt: int, new: int, seed: int) -> dict[str, float]:
        """Generate once for the first token's time, once for all."""
        self.model.eval()
        self.torch.manual_seed(seed)
        ids = self._ids(batch, prompt)
        first = timed(lambda: self._generate(ids, 1))
        return {"first": first, "total": timed(lambda: self._generate(ids, new))}

    def turns(
        self, batch: int, turns: int, append: int, new: int, only: list[int]
    ) -> dict[str, list[float]]:
        """Act as a client that sends the whole conversation each turn (`only` some)."""
        del turns
        self.model.eval()
        out = []
        for turn in only:
            ids = self._ids(batch, turn * append + (turn - 1) * new)
            out.append(timed(lambda ids=ids: self._generate(ids, new)))
        return {"seconds": out}

    def train(self, rows: int, width: int, remat: bool) -> dict[str, float]:
        """Make an AdamW step of the model's own loss."""
        del remat  # it has a setting of its own, which a plain step does not use
        if self._optimizer is None:
            self._optimizer = self.torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.model.train()
        ids = self._ids(rows, width)
        start = time.perf_counter()
        loss = self.model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        value = float(loss)
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - start, "loss": value}


class _Numbers:
    """A tokenizer whose text is the ids themselves."""

    def encode(self, text: str) -> list[int]:
        return [int(i) for i in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def bos_id(self) -> int:
        return 0  # falsy: none is added

    def eos_id(self) -> int:
        return 1

    def pad_id(self) -> int:
        return 0


class Tunix:
    """Tunix' sampler and PEFT trainer (all parameters: no LoRA is asked for)."""

    def __init__(self, directory: Path, dtype: str = "float32"):
        import jax
        from tunix.models.llama3 import model, params

        raw = json.loads((directory / "config.json").read_text())
        self.jax, self.vocab = jax, raw["vocab_size"]
        self.config = model.ModelConfig(
            num_layers=raw["num_hidden_layers"],
            vocab_size=self.vocab,
            embed_dim=raw["hidden_size"],
            hidden_dim=raw["intermediate_size"],
            num_heads=raw["num_attention_heads"],
            head_dim=raw["head_dim"],
            num_kv_heads=raw["num_key_value_heads"],
            rope_theta=raw["rope_theta"],
            norm_eps=raw["rms_norm_eps"],
            weight_tying=raw["tie_word_embeddings"],
        )
        mesh = jax.make_mesh(
            (1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2
        )
        self.model = params.create_model_from_safe_tensors(
            str(directory), self.config, mesh, dtype=jax.numpy.dtype(dtype)
        )
        self._samplers: dict[int, Any] = {}
        self._step: Any = None

    def sample(self, batch: int, prompt: int, new: int, seed: int) -> dict[str, float]:
        """Sample once for the first token's time, once for all."""
        from tunix.generate import sampler

        size = prompt + new
        if size not in self._samplers:
            c = self.config
            cache = sampler.CacheConfig(
                cache_size=size,
                num_layers=c.num_layers,
                num_kv_heads=c.num_kv_heads,
                head_dim=c.head_dim,
            )
            self._samplers[size] = sampler.Sampler(self.model, _Numbers(), cache)
        texts = [" ".join(map(str, r)) for r in prompts(batch, prompt, self.vocab)]

        def run(steps: int) -> None:
            self._samplers[size](
                texts,
                max_generation_steps=steps,
                max_prompt_length=prompt,
                temperature=1.0,
                top_p=1.0,
                eos_tokens=[self.vocab + 1],
                seed=seed,
            )

        return {"first": timed(lambda: run(1)), "total": timed(lambda: run(new))}

    def train(self, rows: int, width: int, remat: bool) -> dict[str, float]:
        """Make an AdamW step of its trainer."""
        del remat
        import optax
        from tunix.sft import peft_trainer, utils

        jnp = self.jax.numpy
        if self._step is None:
            trainer = peft_trainer.PeftTrainer(
                self.model,
                optax.adamw(1e-5),
                peft_trainer.TrainingConfig(eval_every_n_steps=10**9, max_steps=10**9),
            )
            self._step, _ = trainer.jit_train_and_eval_step(cache_nnx_graph=True)
        ids = jnp.asarray(prompts(rows, width, self.vocab), jnp.int32)
        mask = jnp.ones_like(ids, bool)
        inputs = {
            "input_tokens": ids,
            "input_mask": mask,
            "positions": utils.build_positions_from_mask(mask),
            "attention_mask": utils.make_causal_attn_mask(mask),
        }
        start = time.perf_counter()
        loss = self._step(inputs)[0]
        value = float(loss)
        self.jax.block_until_ready(self.jax.tree.leaves(self.model))
        return {"seconds": time.perf_counter() - start, "loss": value}


class LlamaCpp:
    """llama.cpp's server (xllamacpp) on the weights rounded to 16 bits.

    Its own loader wants a GGUF file, which is written here from the directory.
    """

    def __init__(self, directory: Path, dtype: str = "float32"):
        del dtype  # 16 bits: its kernels for float32 weights are not what users run
        self.vocab = json.loads((directory / "config.json").read_text())["vocab_size"]
        self._temp = tempfile.TemporaryDirectory()
        self._file = Path(self._temp.name) / "model.gguf"
        write_gguf(directory, self._file)
        self._servers: dict[tuple[int, int], Any] = {}

    def _server(self, batch: int, length: int) -> Any:
        import xllamacpp

        if (batch, length) not in self._servers:
            p = xllamacpp.CommonParams()
            p.model.path = str(self._file)
            p.n_parallel, p.n_ctx = batch, batch * (length + 16)
            p.n_batch = p.n_ubatch = 512
            p.cpuparams.n_threads = p.cpuparams_batch.n_threads = THREADS
            self._servers = {(batch, length): xllamacpp.Server(p)}
        return self._servers[batch, length]

    def sample(self, batch: int, prompt: int, new: int, seed: int) -> dict[str, float]:
        """Sample all prompts at once, for the first token's time and for all."""
        server = self._server(batch, prompt + new)

        def one(ids: list[int], steps: int) -> None:
            done = server.handle_completions(
                {
                    "prompt": ids,
                    "n_predict": steps,
                    "temperature": 1.0,
                    "top_k": 0,
                    "top_p": 1.0,
                    "min_p": 0.0,
                    "seed": seed,
                    "ignore_eos": True,
                    "cache_prompt": False,
                }
            )
            count = done["usage"]["completion_tokens"]
            if count != steps:
                raise RuntimeError(f"llama.cpp wrote {count} of {steps} tokens")

        def run(steps: int) -> None:
            rows = prompts(batch, prompt, self.vocab).tolist()
            with concurrent.futures.ThreadPoolExecutor(batch) as pool:
                list(pool.map(lambda ids: one(ids, steps), rows))

        return {"first": timed(lambda: run(1)), "total": timed(lambda: run(new))}


def write_gguf(directory: Path, file: Path) -> None:
    """Write a Llama directory as GGUF in float16, q and k in llama.cpp's row order."""
    import gguf
    from safetensors.numpy import load_file

    raw = json.loads((directory / "config.json").read_text())
    tokens = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"] | {
        t["content"]: t["id"] for t in tokens["added_tokens"]
    }
    names = {i: t for t, i in vocabulary.items()}
    out = gguf.GGUFWriter(str(file), "llama")
    out.add_block_count(raw["num_hidden_layers"])
    out.add_context_length(raw["max_position_embeddings"])
    out.add_embedding_length(raw["hidden_size"])
    out.add_feed_forward_length(raw["intermediate_size"])
    out.add_head_count(raw["num_attention_heads"])
    out.add_head_count_kv(raw["num_key_value_heads"])
    out.add_rope_dimension_count(raw["head_dim"])
    out.add_rope_freq_base(raw["rope_theta"])
    out.add_layer_norm_rms_eps(raw["rms_norm_eps"])
    out.add_vocab_size(raw["vocab_size"])
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list([names.get(i, f"<unused{i}>") for i in range(raw["vocab_size"])])
    out.add_token_types([1] * raw["vocab_size"])
    merges = tokens["model"]["merges"]
    out.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    mapping = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, raw["num_hidden_layers"])
    for name, tensor in load_file(directory / "model.safetensors").items():
        value = tensor
        num_heads = raw[
            "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
        ]
        if ".q_proj." in name or ".k_proj." in name:
            halves = value.reshape(num_heads, 2, -1, *value.shape[1:])
            value = halves.swapaxes(1, 2).reshape(value.shape)
        kind = np.float32 if value.ndim == 1 else np.float16
        key = mapping.get_name(name, try_suffixes=(".weight",))
        out.add_tensor(key, np.ascontiguousarray(value.astype(kind)))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


ENGINES = {
    "dreamgym": Dreamgym,
    "transformers": Transformers,
    "tunix": Tunix,
    "llamacpp": LlamaCpp,
}


def peak() -> dict[str, float]:
    """Return the peak memory of this process so far, in bytes."""
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"bytes": peak_rss * (1 if sys.platform == "darwin" else 1024)}


def main() -> None:
    """Answer the lines of standard input."""
    name, directory, dtype = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints goes to standard error
    engine = ENGINES[name](directory, dtype)
    for line in sys.stdin:
        order = json.loads(line)
        do = order.pop("do")
        answer = peak() if do == "peak" else getattr(engine, do)(**order)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
