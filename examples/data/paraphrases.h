// Pairs of sentences with 1 for the same meaning, in the form of MRPC: files of --data, or verses of two Bible
// translations.
//
// Files: train.csv and dev.csv (label, sentence1, sentence2), GLUE's train.tsv and dev.tsv, or Microsoft's
// msr_paraphrase_{train,test}.txt. Verses: the same one in both translations, or its neighbour; every tenth pair is
// held out.
#pragma once

#include <ATen/ATen.h>
#include <hasten/data/dataset/csv.h>
#include <hasten/data/dataset/tensor_dataset.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "data/sword.h"
#include "data/wordpiece.h"

namespace example {

struct Paraphrases {
  std::vector<std::string> first, second;
  std::vector<int64_t> same;
  void add(std::string one, std::string other, int64_t label) {
    first.push_back(std::move(one));
    second.push_back(std::move(other));
    same.push_back(label);
  }
};

/// Tab-separated lines without quoting: label, two ids, two sentences.
inline Paraphrases read_paraphrase_lines(const std::string& path) {
  std::ifstream file(path);
  Paraphrases pairs;
  std::string line;
  std::getline(file, line);
  for (int64_t number = 2; std::getline(file, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    std::vector<std::string> fields(1);
    for (const char c : line) {
      if (c == '\t')
        fields.emplace_back();
      else
        fields.back() += c;
    }
    if (fields.size() != 5 || (fields[0] != "0" && fields[0] != "1")) {
      throw hasten::DataError(hasten::Origin{"paraphrases"}, path, path, ":", number, ": ", fields.size(),
                              " fields; expected a label of 0 or 1, two ids, two "
                              "sentences.");
    }
    pairs.add(fields[3], fields[4], fields[0] == "1" ? 1 : 0);
  }
  return pairs;
}

inline Paraphrases read_paraphrases(const std::string& folder, bool train) {
  namespace fs = std::filesystem;
  const fs::path csv = fs::path(folder) / (train ? "train.csv" : "dev.csv");
  if (fs::exists(csv)) {
    const hasten::data::CsvTable table(csv.string());
    Paraphrases pairs;
    for (size_t i = 0; i < table.num_rows(); ++i) {
      const auto& label = table.texts("label")[i];
      pairs.add(table.texts("sentence1")[i], table.texts("sentence2")[i],
                label == "equivalent" || label == "1" ? 1 : 0);
    }
    return pairs;
  }
  for (const char* name :
       {train ? "train.tsv" : "dev.tsv", train ? "msr_paraphrase_train.txt" : "msr_paraphrase_test.txt"}) {
    const fs::path path = fs::path(folder) / name;
    if (fs::exists(path)) return read_paraphrase_lines(path.string());
  }
  throw hasten::DataError(hasten::Origin{"paraphrases"}, folder, "no ", train ? "train" : "dev",
                          ".csv, .tsv or msr_paraphrase_*.txt in ", folder,
                          "; name MRPC's folder, or leave --data out for the verses.");
}

inline Paraphrases verse_paraphrases(bool train, uint64_t seed) {
  const auto pairs = aligned_verses(read_sword("engKJV2006eb"), read_sword("engWEB2015eb"));
  std::mt19937_64 random(seed);
  Paraphrases chosen;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const uint64_t draw = random();
    const bool same = (draw & 1U) != 0;
    size_t other = i;
    if (!same) other = i == 0 ? 1 : i + 1 == pairs.size() || (draw & 2U) != 0 ? i - 1 : i + 1;
    if ((i % 10 != 9) == train) chosen.add(pairs[i].first, pairs[other].second, same ? 1 : 0);
  }
  return chosen;
}

/// Token ids, mask and token types [pairs, max_length], and labels: [CLS] first [SEP] second [SEP], cut at the longer
/// sentence's end.
inline hasten::data::TensorDataset<4> encode_paraphrases(const Paraphrases& pairs, const WordPiece& pieces,
                                                         int64_t max_length, int64_t limit) {
  const auto n = std::min<int64_t>(limit, static_cast<int64_t>(pairs.same.size()));
  auto ids = at::full({n, max_length}, pieces.at("[PAD]"), at::kLong), types = at::zeros({n, max_length}, at::kLong);
  for (int64_t i = 0; i < n; ++i) {
    auto one = pieces.numbers(pairs.first[static_cast<size_t>(i)]),
         other = pieces.numbers(pairs.second[static_cast<size_t>(i)]);
    while (static_cast<int64_t>(one.size() + other.size()) > max_length - 3)
      (one.size() > other.size() ? one : other).pop_back();
    auto* id = ids[i].mutable_data_ptr<int64_t>();
    auto* type = types[i].mutable_data_ptr<int64_t>();
    const auto put = [&](int64_t token, int64_t of) {
      *id++ = token;
      *type++ = of;
    };
    put(pieces.at("[CLS]"), 0);
    for (const auto token : one) put(token, 0);
    put(pieces.at("[SEP]"), 0);
    for (const auto token : other) put(token, 1);
    put(pieces.at("[SEP]"), 1);
  }
  const auto labels = at::tensor(at::ArrayRef<int64_t>(pairs.same.data(), static_cast<size_t>(n)), at::kLong);
  return hasten::data::TensorDataset(ids, ids.ne(pieces.at("[PAD]")).to(at::kLong), types, labels);
}

}  // namespace example
