// Names of fastai's AWD-LSTM, and the way from its words to others; see fastai_text.h.
//
// A language model's file has "0.encoder.weight", "0.rnns.N.weight_hh_l0_raw", "0.rnns.N.module.weight_ih_l0" and its
// biases, "1.decoder.weight" and "1.decoder.bias"; an encoder's file the same without "0." and without a decoder. They
// stand alone or under "model". Copies ("encoder_dp.emb.weight", weights after dropout) are not read.
#include "learner/fastai_text.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <optional>
#include <unordered_map>

#include "hasten/checkpoint/python_tensor.h"
#include "hasten/checkpoint/state_dict.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/core/error.h"
#include "hasten/files/python/python_file.h"

namespace hasten::learner {
namespace {

namespace fs = std::filesystem;
using files::PythonValue;

// The one file with that ending in a folder, "" if there is none or there are several.
std::string only_file(const std::string& folder, const std::string& ending) {
  std::string found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ending) continue;
    if (!found.empty()) return "";
    found = entry.path().string();
  }
  return found;
}

struct FastaiTensors {
  const PythonValue& values;
  std::string path, prefix;

  bool has(const std::string& name) const { return values.contains(prefix + name); }
  at::Tensor at(const std::string& name) const {
    const PythonValue* value = values.find(prefix + name);
    if (value == nullptr || !value->is_tensor()) {
      throw DataError(Origin{"learner"}, path, path, " has no tensor '", prefix + name,
                      "', which fastai's AWD-LSTM has. Save it with learn.save or learn.save_encoder.");
    }
    return checkpoint::tensor_of(*value);
  }
};

std::optional<FastaiTensors> fastai_tensors(const PythonValue& whole, const std::string& path) {
  const PythonValue* model = whole.find("model");
  const PythonValue& values = model != nullptr && model->is_mapping() ? *model : whole;
  if (!values.is_mapping()) return std::nullopt;
  for (const char* prefix : {"0.", ""}) {
    FastaiTensors tensors{values, path, prefix};
    if (tensors.has("encoder.weight") && tensors.has("rnns.0.module.weight_ih_l0")) return tensors;
  }
  return std::nullopt;
}

std::unordered_map<std::string, int64_t> rows_by_word(const std::string& path) {
  std::unordered_map<std::string, int64_t> rows;
  const auto file = files::PythonFile::open(path);
  const PythonValue& whole = file.value();
  const PythonValue* list = whole.is_object() ? whole.as_object().attribute("itos") : nullptr;
  const auto& words = (list != nullptr ? *list : whole).as_items();
  for (size_t row = 0; row < words.size(); ++row) rows.emplace(words[row].as_string(), static_cast<int64_t>(row));
  return rows;
}

// Takes rows of `from` in the order of `words`.
class FastaiRows {
 public:
  FastaiRows(const std::vector<std::string>& words, const std::unordered_map<std::string, int64_t>& rows) {
    std::vector<int64_t> of_word;
    for (const std::string& word : words) {
      const auto found = rows.find(word);
      of_word.push_back(found == rows.end() ? static_cast<int64_t>(rows.size()) : found->second);
    }
    rows_ = at::tensor(of_word);
  }
  at::Tensor of(const at::Tensor& from) const {
    return at::cat({from, from.mean(0, /*keepdim=*/true)}).index_select(0, rows_);
  }

 private:
  at::Tensor rows_;
};

std::optional<FastaiRows> rows_for(const FastaiWords& words, const std::string& file, int64_t num_rows) {
  if (file.empty()) return std::nullopt;
  if (words.own.empty()) {
    throw UsageError(Origin{"learner"}, "the words of the weights are in ", file,
                     ", and those of the model are not known. Set TextLearnerOptions::words to Vocab::words().");
  }
  const auto rows = rows_by_word(file);
  if (static_cast<int64_t>(rows.size()) != num_rows) {
    throw DataError(Origin{"learner"}, file, file, " has ", rows.size(), " words, and the weights have ", num_rows,
                    " rows. Give the words that were saved with the weights.");
  }
  return FastaiRows(words.own, rows);
}

checkpoint::StateDict encoder_of(const FastaiTensors& from, const at::Tensor& embedding) {
  checkpoint::StateDict state;
  state.set("weight", embedding);
  for (int64_t layer = 0; from.has(text("rnns.", layer, ".module.weight_ih_l0")); ++layer) {
    const std::string there = text("rnns.", layer, '.'), here = text("rnn", layer, '_');
    for (const char* name : {"weight_ih_l0", "bias_ih_l0", "bias_hh_l0"}) {
      state.set(here + name, from.at(there + "module." + name));
    }
    const bool has_raw = from.has(there + "weight_hh_l0_raw");
    state.set(here + "weight_hh_l0", from.at(there + (has_raw ? "weight_hh_l0_raw" : "module.weight_hh_l0")));
  }
  return state;
}

void fill_decoder(torch::nn::Module& model, const FastaiTensors& from, const std::optional<FastaiRows>& rows) {
  const auto own = model.named_parameters();
  const FastaiTensors decoder{from.values, from.path, "1.decoder."};
  const at::NoGradGuard no_grad;
  for (const char* name : {"weight", "bias"}) {
    auto* parameter = own.find(text("decoder_", name));
    if (parameter == nullptr || !decoder.has(name)) continue;
    const at::Tensor values = decoder.at(name);
    parameter->copy_(rows ? rows->of(values) : values);
  }
}

}  // namespace

bool load_fastai_text(torch::nn::Module& model, const std::string& path, const FastaiWords& words) {
  const bool is_folder = fs::is_directory(path);
  const std::string weights = is_folder ? only_file(path, ".pth") : path;
  if (weights.empty() || !files::PythonFile::is_python_file(weights)) return false;
  const auto file = files::PythonFile::open(weights);
  const auto from = fastai_tensors(file.value(), weights);
  if (!from) return false;
  const at::Tensor embedding = from->at("encoder.weight");
  const std::string words_file = !words.file.empty() || !is_folder ? words.file : only_file(path, ".pkl");
  const auto rows = rows_for(words, words_file, embedding.size(0));
  const auto children = model.named_children();
  checkpoint::load_weights(*children["encoder"], encoder_of(*from, rows ? rows->of(embedding) : embedding));
  fill_decoder(model, *from, rows);
  return true;
}

}  // namespace hasten::learner
