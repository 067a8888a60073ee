"""Writes tests/golden/megatron: small checkpoint folders of Megatron-LM, made by torch.save and torch's DCP.

Every folder holds the weights of a model of transformers, whose values follow from its names (value_of). They are
turned into Megatron's layout here, by whole tensors, and cut for its ranks. The tests compare what is read with the
values of the names, so that nothing but the names is shared with the reader. State of optimizers has values by names
as well ("exp_avg:NAME"), and goes the same way.

    python scripts/record_megatron_folders.py tests/golden/megatron
"""

import argparse
import json
import math
import pathlib
import shutil
import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp

warnings.filterwarnings("ignore")
HEADS, DIM, HIDDEN, FFN, WORDS, PADDED, POSITIONS = 4, 2, 8, 12, 10, 16, 6


PREFIX = ""  # of names: "exp_avg:" for the values of a slot


def value_of(name, *shape):
    count = math.prod(shape)
    seed = sum((PREFIX + name).encode())
    values = [((7919 * i + 104729 * seed) % 2003 - 1001) / 1024 for i in range(count)]
    return torch.tensor(values, dtype=torch.float32).view(*shape)


def linear(name, rows, columns, bias=True):
    return {"weight": value_of(name + ".weight", rows, columns), **({"bias": value_of(name + ".bias", rows)} if bias else {})}


def norm(name, bias=True):
    return {"weight": value_of(name + ".weight", HIDDEN), **({"bias": value_of(name + ".bias", HIDDEN)} if bias else {})}


def padded(tensor):
    return torch.cat([tensor, torch.full((PADDED - WORDS, *tensor.shape[1:]), 9.0)])


def interleaved(parts, groups, version):
    """Rows of several projections as Megatron mixes them: [parts, heads, dim], [heads, dim, parts] or by groups."""
    if version == 0:
        return torch.cat(parts)
    if version == 1:
        return torch.stack(parts, 1).flatten(0, 1)
    cut = [part.view(groups, -1, *part.shape[1:]) for part in parts]
    return torch.cat(cut, 1).flatten(0, 1)


def mixed(projections, groups, version):
    kinds = projections[0].keys()
    return {kind: interleaved([one[kind] for one in projections], groups, version) for kind in kinds}


def gpt2_layer(i, version):
    at = f"transformer.h.{i}."
    packed = linear(at + "attn.c_attn", 3 * HIDDEN, HIDDEN)
    qkv = mixed([{kind: value.chunk(3)[part] for kind, value in packed.items()} for part in range(3)], HEADS, version)
    return {
        "input_layernorm": norm(at + "ln_1"),
        "self_attention.linear_qkv": qkv,
        "self_attention.linear_proj": linear(at + "attn.c_proj", HIDDEN, HIDDEN),
        "pre_mlp_layernorm": norm(at + "ln_2"),
        "mlp.linear_fc1": linear(at + "mlp.c_fc", FFN, HIDDEN),
        "mlp.linear_fc2": linear(at + "mlp.c_proj", HIDDEN, FFN),
    }


def gpt2(layers, version=3):
    return {
        "embedding.word_embeddings": {"weight": padded(value_of("transformer.wte.weight", WORDS, HIDDEN))},
        "embedding.position_embeddings": {"weight": value_of("transformer.wpe.weight", POSITIONS, HIDDEN)},
        "layers": {"decoder": [gpt2_layer(i, version) for i in range(layers)]},
        "decoder.final_layernorm": norm("transformer.ln_f"),
    }


def llama(layers, groups=2):
    blocks = []
    for i in range(layers):
        at = f"model.layers.{i}."
        attention = [linear(at + f"self_attn.{name}_proj", (HEADS if name == "q" else groups) * DIM, HIDDEN, False) for name in "qkv"]
        gate, up = linear(at + "mlp.gate_proj", FFN, HIDDEN, False), linear(at + "mlp.up_proj", FFN, HIDDEN, False)
        blocks.append(
            {
                "input_layernorm": norm(at + "input_layernorm", False),
                "self_attention.linear_qkv": mixed(attention, groups, 3),
                "self_attention.linear_proj": linear(at + "self_attn.o_proj", HIDDEN, HIDDEN, False),
                "pre_mlp_layernorm": norm(at + "post_attention_layernorm", False),
                "mlp.linear_fc1": {"weight": torch.cat([gate["weight"], up["weight"]])},
                "mlp.linear_fc2": linear(at + "mlp.down_proj", HIDDEN, FFN, False),
            }
        )
    return {
        "embedding.word_embeddings": {"weight": padded(value_of("model.embed_tokens.weight", WORDS, HIDDEN))},
        "layers": {"decoder": blocks},
        "decoder.final_layernorm": norm("model.norm", False),
        "output_layer": {"weight": padded(value_of("lm_head.weight", WORDS, HIDDEN))},
    }


def bert(layers, behind):
    blocks = []
    for i in range(layers):
        at = f"bert.encoder.layer.{i}."
        first = "bert.embeddings.LayerNorm" if i == 0 else f"bert.encoder.layer.{i - 1}.output.LayerNorm"
        attention = [linear(at + "attention.self." + name, HIDDEN, HIDDEN) for name in ("query", "key", "value")]
        blocks.append(
            {
                "input_layernorm": norm(first if behind else at + "attention.ln"),
                "self_attention.linear_qkv": mixed(attention, HEADS, 3),
                "self_attention.linear_proj": linear(at + "attention.output.dense", HIDDEN, HIDDEN),
                "pre_mlp_layernorm": norm(at + ("attention.output.LayerNorm" if behind else "ln")),
                "mlp.linear_fc1": linear(at + "intermediate.dense", FFN, HIDDEN),
                "mlp.linear_fc2": linear(at + "output.dense", HIDDEN, FFN),
            }
        )
    embeddings = "bert.embeddings."
    return {
        "embedding.word_embeddings": {"weight": padded(value_of(embeddings + "word_embeddings.weight", WORDS, HIDDEN))},
        "embedding.position_embeddings": {"weight": value_of(embeddings + "position_embeddings.weight", POSITIONS, HIDDEN)},
        "embedding.tokentype_embeddings": {"weight": value_of(embeddings + "token_type_embeddings.weight", 2, HIDDEN)},
        "layers": {"encoder": blocks},
        "encoder.final_layernorm": norm(f"bert.encoder.layer.{layers - 1}.output.LayerNorm" if behind else "bert.encoder.ln"),
        "pooler.dense": linear("bert.pooler.dense", HIDDEN, HIDDEN),
        "lm_head.dense": linear("cls.predictions.transform.dense", HIDDEN, HIDDEN),
        "lm_head.layer_norm": norm("cls.predictions.transform.LayerNorm"),
        "output_layer": {"bias": padded(value_of("cls.predictions.bias", WORDS))},
        "binary_head": linear("cls.seq_relationship", 2, HIDDEN),
    }


def t5(layers, scale):
    """Scores are divided by the root of DIM there, and not here: queries are larger by it."""
    stacks = {}
    for stack in ("encoder", "decoder"):
        blocks = []
        for i in range(layers):
            at = f"{stack}.block.{i}.layer."
            attention = [linear(at + "0.SelfAttention." + name, HIDDEN, HIDDEN, False) for name in "qkv"]
            attention[0] = {"weight": attention[0]["weight"] / scale}
            block = {
                "input_layernorm": norm(at + "0.layer_norm", False),
                "self_attention.linear_qkv": mixed(attention, HEADS, 3),
                "self_attention.linear_proj": linear(at + "0.SelfAttention.o", HIDDEN, HIDDEN, False),
            }
            last = at + "1."
            if stack == "decoder":
                cross, last = at + "1.EncDecAttention.", at + "2."
                keys = [linear(cross + name, HIDDEN, HIDDEN, False) for name in "kv"]
                block["pre_cross_attn_layernorm"] = norm(at + "1.layer_norm", False)
                block["cross_attention.linear_q"] = {"weight": linear(cross + "q", HIDDEN, HIDDEN, False)["weight"] / scale}
                block["cross_attention.linear_kv"] = mixed(keys, HEADS, 3)
                block["cross_attention.linear_proj"] = linear(cross + "o", HIDDEN, HIDDEN, False)
            block["pre_mlp_layernorm"] = norm(last + "layer_norm", False)
            block["mlp.linear_fc1"] = linear(last + "DenseReluDense.wi", FFN, HIDDEN, False)
            block["mlp.linear_fc2"] = linear(last + "DenseReluDense.wo", HIDDEN, FFN, False)
            blocks.append(block)
        stacks[stack] = blocks
    model = {
        "embedding.word_embeddings": {"weight": padded(value_of("shared.weight", WORDS, HIDDEN))},
        "layers": stacks,
        "output_layer": {"weight": padded(value_of("lm_head.weight", WORDS, HIDDEN))},
    }
    for stack in ("encoder", "decoder"):
        name = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        model[f"{stack}_relative_pos_emb.relative_attention_bias"] = {"weight": value_of(name, 32, HEADS)}
        model[f"{stack}.final_layernorm"] = norm(f"{stack}.final_layer_norm", False)
    return model


def cut(name, kind, value, tp, gated, version):
    """The parts of tensor ranks."""
    rows = ("word_embeddings", "output_layer", "linear_qkv", "linear_kv", "linear_q", "linear_fc1")
    if name.endswith(rows):
        blocks = 2 if gated and name.endswith("linear_fc1") else 3 if version == 0 and name.endswith("linear_qkv") else 1
        pieces = [block.chunk(tp) for block in value.chunk(blocks)]
        return [torch.cat([block[rank] for block in pieces]).clone() for rank in range(tp)]
    if name.endswith(("linear_proj", "linear_fc2")) and kind == "weight":
        return [part.clone() for part in value.chunk(tp, 1)]
    return [value.clone()] * tp


OLDER = {
    "self_attention.linear_qkv": "self_attention.query_key_value",
    "self_attention.linear_proj": "self_attention.dense",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "mlp.linear_fc1": "mlp.dense_h_to_4h",
    "mlp.linear_fc2": "mlp.dense_4h_to_h",
}


def older(flat):
    """Nested dicts of Megatron-LM before its core."""
    model = {"language_model": {"embedding": {}, "encoder": {}}}
    language = model["language_model"]
    for name, value in flat.items():
        for new, old in OLDER.items():
            name = name.replace(new, old)
        if name.startswith("embedding."):
            _, table, kind = name.split(".")
            language["embedding"].setdefault(table, {})[kind] = value
        elif name.startswith(("encoder.", "decoder.")):
            language["encoder"][name[8:]] = value
        elif name.startswith("pooler."):
            language.setdefault("pooler", {})[name[7:]] = value
        elif name == "output_layer.bias":
            model.setdefault("lm_head", {})["bias"] = value
        elif name.startswith("lm_head."):
            model.setdefault("lm_head", {})[name[8:].replace("layer_norm.", "layernorm.")] = value
        elif name.startswith("binary_head."):
            model.setdefault("binary_head", {})[name[12:]] = value
    return model


def fused(flat):
    """Names where a norm is part of the linear layer behind it (Transformer Engine)."""
    names = {".input_layernorm.": ".self_attention.linear_qkv.layer_norm_", ".pre_mlp_layernorm.": ".mlp.linear_fc1.layer_norm_"}
    result = {}
    for name, value in flat.items():
        for plain, there in names.items():
            name = name.replace(plain, there)
        result[name] = value
        if name.endswith("linear_fc2.weight"):
            result[name.replace(".weight", "._extra_state")] = None
    return result


def arguments(tp, pp, layers, **more):
    return argparse.Namespace(
        num_layers=layers, hidden_size=HIDDEN, num_attention_heads=HEADS, kv_channels=DIM, ffn_hidden_size=FFN, num_query_groups=1,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, padded_vocab_size=PADDED, vocab_size=WORDS,
        params_dtype=torch.float32, lr=0.001, **{"swiglu": False, "group_query_attention": False, **more},
    )  # fmt: skip


def models_of_slots(model, *args):
    """The model's own values, and those of each slot of its optimizer."""
    global PREFIX
    models = {}
    for slot in ("param", "exp_avg", "exp_avg_sq"):
        PREFIX = "" if slot == "param" else slot + ":"
        models[slot] = model(*args)
    PREFIX = ""
    return models


def is_decayed(name, value):
    return value.dim() != 1 and not name.endswith(".bias")


def group_options(decayed):
    return {"lr": 0.002, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.1 * decayed, "wd_mult": 1.0 * decayed, "lr_mult": 1.0,
            "is_expert_parallel": False, "is_decoupled_lr": False, "max_lr": 0.003, "min_lr": 0.0, "bias_correction": True}  # fmt: skip


def numbered(chunks):
    """Float16OptimizerWithFloat16Params.state_dict(): parameters by numbers, group by group. `chunks`: slot to tensors, of each."""
    params = [(name, {slot: flat[name] for slot, flat in chunk.items()}) for chunk in chunks for name in chunk["param"]]
    state, groups, masters, number = {}, [], [], 0
    for decayed in (True, False):
        own = [slots for name, slots in params if is_decayed(name, slots["param"]) == decayed]
        groups.append({**group_options(decayed), "params": list(range(number, number + len(own))), "step": 20})
        masters.append([slots["param"] for slots in own])
        for slots in own:
            state[number] = {slot: slots[slot] for slot in ("exp_avg", "exp_avg_sq")}
            number += 1
    return {"optimizer": {"state": state, "param_groups": groups}, "fp32_from_fp16_params": masters}


def buffers(chunks, tied, ranks=2):
    """DistributedOptimizer.get_parameter_state_dp_zero(), with the buffer of _ParamAndGradBuffer: a bucket's end is padded to a
    multiple of the ranks and 128, which the file leaves out."""

    def pad(at, of):
        return -(-at // of) * of

    result = {"buckets_coalesced": True}
    for index, chunk in enumerate(chunks):
        places, sizes, start, bucket_start, open_bucket = {}, [], 0, 0, []
        for name, value in reversed(chunk["param"].items()):
            start = pad(start, 64)
            alone = tied and name in ("embedding.word_embeddings.weight", "output_layer.weight")
            if alone and open_bucket:
                sizes.append((bucket_start, start - bucket_start))
                start = bucket_start = pad(start, math.lcm(ranks, 128))
                open_bucket = []
            places[name] = start
            start += value.numel()
            open_bucket.append(name)
            if alone:
                sizes.append((bucket_start, start - bucket_start))
                start = bucket_start = pad(start, math.lcm(ranks, 128))
                open_bucket = []
        if open_bucket:
            sizes.append((bucket_start, start - bucket_start))
        tensors = {}
        for slot, flat in chunk.items():
            whole = torch.zeros(pad(start, math.lcm(ranks, 128)))
            for name, value in flat.items():
                whole[places[name] : places[name] + value.numel()] = value.flatten()
            tensors[slot] = torch.cat([whole[begin : begin + size] for begin, size in sizes])
        tensors["numel_unpadded"] = sum(size for _, size in sizes)
        result[index] = {(torch.bfloat16, torch.float32): tensors}
    return result


def stages_of(layers, pp, chunks):
    """Which layers each (chunk, stage) holds; the last stage may have fewer."""
    numbers = list(range(layers))
    size = -(-layers // (pp * chunks))
    pieces = [numbers[i * size : (i + 1) * size] for i in range(pp * chunks)]
    return [pieces[chunk * pp : (chunk + 1) * pp] for chunk in range(chunks)]


def write_ranks(folder, model, args, version=3, chunks=1, form=lambda flat: flat, split_at=None, optimizer=None):
    """With an optimizer ("numbered", "buffers") `model` holds one of each slot, and the weights are saved in bfloat16."""
    slots = model if optimizer else {"param": model}
    tp, pp = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
    name = "iter_0000020"
    plans = {}
    for stack, blocks in slots["param"]["layers"].items():
        if split_at is None:
            plans[stack] = stages_of(len(blocks), pp, chunks)
        else:
            whole = stages_of(len(blocks), split_at if stack == "encoder" else pp - split_at, 1)[0]
            plans[stack] = [whole + [[]] * (pp - split_at) if stack == "encoder" else [[]] * split_at + whole]
    for stage in range(pp):
        for rank in range(tp):
            saved = {"args": args, "checkpoint_version": float(version), "iteration": 20, "rng_state": [{"random_rng_state": (3, None)}]}
            state = []
            for chunk in range(chunks):
                first, last = stage == 0 and chunk == 0, stage == pp - 1 and chunk == chunks - 1

                def flat_of(model):
                    flat = {}

                    def put(prefix, tensors):
                        for kind, value in tensors.items():
                            flat[f"{prefix}.{kind}"] = cut(prefix, kind, value, tp, args.swiglu, version)[rank]

                    def put_layers():
                        for stack, plan in plans.items():
                            for local, number in enumerate(plan[chunk][stage]):
                                for prefix, tensors in model["layers"][stack][number].items():
                                    put(f"{stack}.layers.{local}.{prefix}", tensors)

                    for prefix, tensors in model.items():
                        if prefix == "layers":
                            if optimizer:  # in the order of the model's modules, which the optimizer has
                                put_layers()
                            continue
                        stack = prefix.split("_relative")[0].split(".")[0]
                        if prefix.startswith("embedding") or "_relative" in prefix:
                            here = first if split_at is None or stack != "decoder" else stage >= split_at
                            here = here or (split_at == stage and prefix.endswith("word_embeddings"))
                        elif prefix == "encoder.final_layernorm" and split_at is not None:
                            here = stage == split_at - 1
                        else:
                            here = last
                        if here:
                            put(prefix, tensors)
                    if not optimizer:
                        put_layers()
                    if last and pp > 1 and "output_layer" not in model:  # the tied head's copy of the table
                        flat["output_layer.weight"] = cut("word_embeddings", "weight", model["embedding.word_embeddings"]["weight"], tp, False, 3)[rank]
                    return flat

                flats = {slot: flat_of(one) for slot, one in slots.items()}
                state.append(flats)
                flat = flats["param"]
                if optimizer:
                    flat = {key: value.bfloat16() for key, value in flat.items()}
                saved["model" if chunks == 1 else f"model{chunk}"] = form(flat)
            if optimizer == "numbered":
                saved["optimizer"] = numbered(state)
            if optimizer == "buffers":
                groups = [{**group_options(decayed), "step": 20} for decayed in (True, False)]
                saved["optimizer"] = {"optimizer": {"param_groups": groups}}
            place = folder / name / (f"mp_rank_{rank:02d}" if pp == 1 else f"mp_rank_{rank:02d}_{stage:03d}")
            place.mkdir(parents=True)
            torch.save(saved, place / "model_optim_rng.pt")
            if optimizer == "buffers":
                tied = pp > 1 and not getattr(args, "untie_embeddings_and_output_weights", False)
                torch.save(buffers(state, tied), place / "distrib_optim.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("20")


def stacked(model):
    """Tensors as Megatron-Core's torch_dist has them: layers in one tensor."""
    state = {}
    for prefix, tensors in model.items():
        if prefix != "layers":
            state.update({f"{prefix}.{kind}": value for kind, value in tensors.items()})
    for stack, blocks in model["layers"].items():
        for prefix, tensors in blocks[0].items():
            for kind in tensors:
                state[f"{stack}.layers.{prefix}.{kind}"] = torch.stack([block[prefix][kind] for block in blocks])
    return {name: value for name, value in fused(state).items() if value is not None}


def write_distributed(folder, model, args, slots=None, in_buckets=False):
    place = folder / "iter_0000020"
    place.mkdir(parents=True)
    common = {"args": args, "checkpoint_version": 3.0, "iteration": 20}
    state = stacked(model)
    if slots is None:
        state["optimizer.state.exp_avg.decoder.final_layernorm.weight"] = torch.zeros(HIDDEN)
    else:
        for slot, one in slots.items():
            slot = "fp32_param" if slot == "param" else slot
            state.update({f"optimizer.state.{slot}.{name}": value for name, value in stacked(one).items()})
        groups = [group_options(decayed) for decayed in (True, False)]
        common["optimizer"] = {"optimizer": {"state": {"common_step": 20}, "param_groups": groups}}
    if in_buckets:  # dp_reshardable: the buffers of ranks, without the parameters' names
        state["optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.exp_avg"] = torch.zeros(64)
    dcp.save(state, checkpoint_id=place, no_dist=True)
    torch.save(common, place / "common.pt")
    (place / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}))
    (folder / "latest_checkpointed_iteration.txt").write_text("20")


def main():
    root = pathlib.Path(sys.argv[1])
    shutil.rmtree(root, ignore_errors=True)
    write_ranks(root / "gpt2_tp2_pp2", gpt2(3), arguments(2, 2, 3), form=fused)
    for version in (0, 1, 2):
        write_ranks(root / f"gpt2_older_v{version}", gpt2(1, version), arguments(2, 1, 1), version, form=older)
    write_ranks(root / "gpt2_virtual", gpt2(4), arguments(1, 2, 4), chunks=2)
    write_ranks(root / "llama_tp2", llama(2), llama_arguments(2, 1, 2))
    write_ranks(root / "bert_tp2", bert(2, True), arguments(2, 1, 2, apply_residual_connection_post_layernorm=True), form=older)
    write_ranks(root / "bert_norms_first", bert(1, False), arguments(1, 1, 1))
    write_ranks(root / "t5_tp2_pp2", t5(1, 1 / math.sqrt(DIM)), arguments(2, 2, 1, untie_embeddings_and_output_weights=True), split_at=1)
    write_distributed(root / "gpt2_torch_dist", gpt2(2), arguments(2, 2, 2))
    write_ranks(root / "gpt2_numbered_tp2_pp2", models_of_slots(gpt2, 3), arguments(2, 2, 3), form=fused, optimizer="numbered")
    write_ranks(root / "gpt2_buffers_tp2_pp2", models_of_slots(gpt2, 3), arguments(2, 2, 3), optimizer="buffers")
    write_ranks(root / "gpt2_buffers_virtual", models_of_slots(gpt2, 4), arguments(1, 2, 4), chunks=2, optimizer="buffers")
    write_ranks(root / "llama_buffers_tp2", models_of_slots(llama, 2), llama_arguments(2, 1, 2), optimizer="buffers")
    write_distributed(root / "gpt2_torch_dist_state", gpt2(2), arguments(2, 2, 2), models_of_slots(gpt2, 2))
    write_distributed(root / "gpt2_torch_dist_buckets", gpt2(1), arguments(1, 1, 1), in_buckets=True)


def llama_arguments(tp, pp, layers):
    args = arguments(tp, pp, layers, swiglu=True, group_query_attention=True, untie_embeddings_and_output_weights=True)
    args.num_query_groups = 2
    return args


main()
