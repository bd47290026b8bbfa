"""What a `config.json` may hold besides what an architecture file reads.

An attribute that could change the model's math and is not understood is
refused by name: a plan is right or there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gristmill.runtime.architectures.config import describe
from gristmill.runtime.errors import UnsupportedError

__all__ = ["check_attributes"]

_READ_BY_ALL = (
    "model_type architectures vocab_size hidden_size intermediate_size num_hidden_layers "
    "num_attention_heads num_key_value_heads head_dim hidden_act max_position_embeddings rms_norm_eps "
    "tie_word_embeddings dtype torch_dtype rope_theta rope_scaling rope_parameters"
)

_NO_EFFECT_ON_LOGITS = (
    # Where the model comes from, and how it is stored.
    "transformers_version name_or_path quantization_config unsloth_fixed unsloth_version "
    "transformers.js_config is_llama_config "
    # Special tokens.
    "bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id mask_token_id "
    "decoder_start_token_id tokenizer_class prefix "
    # Training, and how a forward pass is computed or returned.
    "attention_dropout hidden_dropout resid_pdrop embd_pdrop dropout initializer_range "
    "gradient_checkpointing use_cache pretraining_tp chunk_size_feed_forward torchscript use_bfloat16 "
    "tf_legacy_loss return_dict output_attentions output_hidden_states attn_implementation is_decoder "
    # Heads for other tasks.
    "id2label label2id num_labels problem_type finetuning_task task_specific_params "
    # Defaults of generation, from before they moved to generation_config.json.
    "max_length max_new_tokens min_length do_sample early_stopping num_beams num_beam_groups "
    "diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty "
    "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences "
    "return_dict_in_generate output_scores remove_invalid_values exponential_decay_length_penalty "
    "suppress_tokens begin_suppress_tokens forced_bos_token_id forced_eos_token_id"
)

_ONE_VALUE_ONLY: Mapping[str, object] = {
    "add_cross_attention": False,
    "attention_bias": False,
    "is_causal": True,
    "is_encoder_decoder": False,
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "pruned_heads": {},
    "rope_interleaved": False,
    "tie_encoder_decoder": False,
    "use_mrope": False,
    "use_sliding_window": False,
}


def check_attributes(config: Mapping[str, Any], model_class: str, also_read: Iterable[str] = ()) -> None:
    """Refuse a class other than `model_class`, custom model code, and attributes that nobody reads.

    `also_read` names what the architecture file reads beyond what all of them
    do. Raises UnsupportedError with the attribute's name and value.
    """
    classes = config.get("architectures")
    if classes and classes != [model_class]:
        raise UnsupportedError(
            "config.json: architectures", found=describe(classes), expected=f"['{model_class}']"
        )
    if config.get("auto_map"):
        raise UnsupportedError(
            "config.json: auto_map: the model brings its own code",
            found=describe(config["auto_map"]),
            expected=f"{model_class} as transformers defines it",
        )
    known = {*_READ_BY_ALL.split(), *_NO_EFFECT_ON_LOGITS.split(), *also_read}
    for key, value in config.items():
        if key in known or key.startswith("_") or value is None:
            continue
        if key not in _ONE_VALUE_ONLY:
            raise UnsupportedError(
                f"config.json: attribute {key} of model type {config.get('model_type')} is not understood",
                found=describe(value),
                hint="remove it only if you know that it does not change the model's output",
            )
        if value != _ONE_VALUE_ONLY[key]:
            raise UnsupportedError(
                f"config.json: {key}", found=describe(value), expected=describe(_ONE_VALUE_ONLY[key])
            )
