"""Records tests/golden/masked_samples.json: samples of Megatron-Core's BERT and T5 datasets over small documents.

Needs megatron-core 0.16, whose datasets run on a CPU. Usage: record_masked_samples.py FILE [SEED]"""
import json
import os
import random
import sys
import tempfile
import types
import warnings

warnings.filterwarnings("ignore")
import numpy
import torch
import torch.distributed as dist
from megatron.core.datasets.bert_dataset import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
from megatron.core.datasets.utils import Split

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES += [("##" if i % 3 == 2 else "") + "piece%d" % i for i in range(40)]
KEYS = {"bert": {"text": "input_ids", "types": "token_type_ids", "labels": "labels", "padding_mask": "attention_mask",
                 "is_random": "next_sentence_label"},
        "t5": {"text_enc": "input_ids", "text_dec": "decoder_input_ids", "labels": "labels", "enc_mask": "attention_mask"}}


def tokenizer_of(num_extra_ids):
    pieces = PIECES + ["[BOS]", "[EOS]"] + ["<extra_id_%d>" % i for i in range(num_extra_ids)]
    ids = {piece: number for number, piece in enumerate(pieces)}
    return types.SimpleNamespace(
        inv_vocab=dict(enumerate(pieces)), cls=ids["[CLS]"], sep=ids["[SEP]"], mask=ids["[MASK]"], pad=ids["[PAD]"],
        bos=ids["[BOS]"], eos=ids["[EOS]"], unique_identifiers={},
        additional_special_tokens_ids=[ids["<extra_id_%d>" % i] for i in range(num_extra_ids)])


def documents_of(source, most_sentences, most_tokens):
    """Some documents have no sentence, or one; the last token of the vocabulary and padding may be among the tokens."""
    return [[[source.randint(5, len(PIECES) - 1) for _ in range(source.randint(1, most_tokens))]
             for _ in range(source.choice([0, 1, *range(2, most_sentences + 1)]))] for _ in range(9)]


def samples_of(kind, given, documents, folder):
    prefix = os.path.join(folder, "text")
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=numpy.int32)
    for document in documents:
        for sentence in document:
            builder.add_item(torch.tensor(sentence))
        builder.end_document()
    builder.finalize(prefix + ".idx")
    shared = dict(
        random_seed=given["seed"], sequence_length=given["seq_length"], split="1,0,0", blend=([prefix], None),
        path_to_cache=os.path.join(folder, "cache"), tokenizer=tokenizer_of(given.get("num_extra_ids", 0)),
        masking_probability=given["masking_probability"],
        short_sequence_probability=given["short_sequence_probability"], masking_max_ngram=given["max_ngram"],
        masking_do_full_word=given["whole_words"], masking_do_permutation=False,
        masking_use_longer_ngrams=given["longer_ngrams"], masking_use_geometric_distribution=given["geometric"])
    if kind == "bert":
        dataset, config = BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig(
            **shared, classification_head=given["sentence_order"])
    else:
        dataset, config = T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig(
            **shared, sequence_length_decoder=given["decoder_seq_length"])
    low = dataset.build_low_level_dataset(prefix, config)
    begin, end = given["documents_range"]
    # The peer cannot count to one epoch itself: it stops behind the epoch that has the first sample.
    made = dataset(low, prefix, numpy.arange(begin, end, dtype=numpy.int32), max(given["num_samples"], 1), Split.train,
                   config)
    rows = [made[i] for i in range(given["num_samples"] or len(made))]
    out = {ours: [row[theirs] if isinstance(row[theirs], int) else row[theirs].tolist() for row in rows]
           for theirs, ours in KEYS[kind].items()}
    out["labels"] = [[label if counts else -100 for label, counts in zip(row["labels"].tolist(), row["loss_mask"].tolist())]
                     for row in rows]
    if not given.get("sentence_order", False):
        out.pop("next_sentence_label", None)
    return out


def main():
    source = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 11)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    base = {"seq_length": 24, "num_samples": 0, "seed": 1234, "masking_probability": 0.15,
            "short_sequence_probability": 0.1, "max_ngram": 3, "whole_words": True, "longer_ngrams": False,
            "geometric": False, "documents_range": [0, 9]}
    bert = {**base, "sentence_order": True}
    t5 = {**base, "max_ngram": 10, "geometric": True, "num_extra_ids": 16, "decoder_seq_length": 20}
    wanted = [
        ("bert/plain", bert), ("bert/one_text", {**bert, "sentence_order": False}),
        ("bert/epochs", {**bert, "num_samples": 30, "seed": 7}), ("bert/range", {**bert, "documents_range": [2, 8]}),
        ("bert/short_texts", {**bert, "short_sequence_probability": 0.5, "num_samples": 24}),
        ("bert/never_short", {**bert, "short_sequence_probability": 0.0}),
        ("bert/pieces_alone", {**bert, "whole_words": False, "masking_probability": 0.4}),
        ("bert/longer_ngrams", {**bert, "longer_ngrams": True, "masking_probability": 0.5}),
        ("bert/geometric", {**bert, "geometric": True, "masking_probability": 0.5, "max_ngram": 8}),
        ("bert/words_of_one", {**bert, "max_ngram": 1, "seed": 4294967295 // 2 - 1}),
        ("t5/plain", t5), ("t5/epochs", {**t5, "num_samples": 30, "seed": 7}),
        ("t5/range", {**t5, "documents_range": [1, 7]}),
        ("t5/short_texts", {**t5, "short_sequence_probability": 0.5, "num_samples": 24}),
        ("t5/many_spans", {**t5, "masking_probability": 0.4, "max_ngram": 2, "geometric": False,
                           "decoder_seq_length": 24}),
        ("t5/pieces_alone", {**t5, "whole_words": False, "masking_probability": 0.3, "seq_length": 32}),
    ]
    cases = []
    for name, given in wanted:
        documents = documents_of(source, 7, 12)
        with tempfile.TemporaryDirectory() as folder:
            expected = samples_of(name.split("/")[0], given, documents, folder)
        cases.append({"case": name, "input": {**given, "pieces": PIECES, "documents": documents}, "expected": expected})
    with open(sys.argv[1], "w") as file:
        json.dump({"topic": "masked_samples", "versions": {"megatron-core": "0.16.0"}, "cases": cases}, file, separators=(",", ":"))
        file.write("\n")


main()
