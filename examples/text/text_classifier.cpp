// A text classifier in ULMFiT's two steps (Howard and Ruder, 2018): an AWD-LSTM language model on all texts, then a
// classifier with its encoder, fine-tuned group by group.
//
//   text_classifier                               Debian's fortunes: which collection does a text come from
//   hasten launch -n 2 text_classifier
//   text_classifier --data FOLDER --classes A B   one file a class, texts separated by lines of a single %
//   text_classifier --data aclImdb                folders train/{neg,pos} and test/{neg,pos} with a file a text
//
// Nothing pretrained is used: from scratch.
#include <hasten/hasten.h>
#include <hasten/learner/callbacks.h>
#include <hasten/learner/distributed.h>
#include <hasten/learner/learner.h>
#include <hasten/learner/metrics.h>
#include <hasten/learner/recorder.h>
#include <hasten/learner/text_loaders.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "models/awd_lstm.h"
#include "support.h"

namespace learner = hasten::learner;

struct TextOptions {
  std::string data = "/usr/share/games/fortunes";
  std::vector<std::string> classes = {"computers", "definitions", "literature", "platitudes",
                                      "science",   "songs-poems", "startrek",   "wisdom"};
  int64_t epochs = 4, language_epochs = 2, batch_size = 32, embedding = 100, hidden = 200, layers = 2,
          limit = 1'000'000, seq_len = 72;
  double lr = 5e-3, drop_mult = 0.5;
  uint64_t seed = 1;
};

struct Texts {
  std::vector<std::string> texts;
  std::vector<int64_t> classes;
  std::vector<size_t> train, valid;
};

// A folder with a file a class: every fifth text of a random order is held out, the same on every rank.
Texts read_collections(const TextOptions& o) {
  Texts all;
  for (size_t i = 0; i < o.classes.size(); ++i) {
    const auto path = std::filesystem::path(o.data) / o.classes[i];
    std::ifstream file(path);
    if (!file) {
      throw hasten::DataError(
          hasten::Origin{"text_classifier"}, path.string(), "cannot read ", path.string(),
          "; install Debian's package fortunes, or name a folder and its files with --data and --classes.");
    }
    std::string text;
    int64_t count = 0;
    const auto keep = [&] {
      if (text.find_first_not_of(" \n\t") != std::string::npos && count++ < o.limit) {
        all.texts.push_back(text);
        all.classes.push_back(static_cast<int64_t>(i));
      }
      text.clear();
    };
    for (std::string line; std::getline(file, line);) {
      if (line == "%")
        keep();
      else
        text += line + "\n";
    }
    keep();
  }
  const auto order = torch::randperm(static_cast<int64_t>(all.texts.size()), at::detail::createCPUGenerator(o.seed));
  for (size_t i = 0; i < all.texts.size(); ++i)
    (i % 5 == 0 ? all.valid : all.train).push_back(static_cast<size_t>(order.const_data_ptr<int64_t>()[i]));
  return all;
}

// IMDB's folders.
Texts read_folders(TextOptions& o) {
  Texts all;
  o.classes = {"neg", "pos"};
  for (const std::string part : {"train", "test"}) {
    for (size_t i = 0; i < o.classes.size(); ++i) {
      int64_t count = 0;
      for (const auto& entry :
           std::filesystem::directory_iterator(std::filesystem::path(o.data) / part / o.classes[i])) {
        if (count++ >= o.limit) break;
        std::ifstream file(entry.path());
        (part == "train" ? all.train : all.valid).push_back(all.texts.size());
        all.texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
        all.classes.push_back(static_cast<int64_t>(i));
      }
    }
  }
  return all;
}

template <class T>
std::vector<T> pick(const std::vector<T>& from, const std::vector<size_t>& which) {
  std::vector<T> result;
  for (const size_t i : which) result.push_back(from[i]);
  return result;
}

// Batches in memory go to the ranks in turn; what is left over is dropped.
std::vector<learner::Batch> even(std::vector<learner::Batch> batches, const hasten::Accelerator& accelerator) {
  const auto world = static_cast<size_t>(accelerator.world_size());
  batches.resize(batches.size() / world * world);
  return batches;
}

// Batch k of each rank is the k-th of its own rows.
std::vector<learner::Batch> own_rows(const std::vector<learner::Batch>& rows, const hasten::Accelerator& accelerator) {
  std::vector<learner::Batch> all;
  for (const auto& batch : rows) all.insert(all.end(), static_cast<size_t>(accelerator.world_size()), batch);
  return all;
}

void train_text(TextOptions o) {
  const hasten::Accelerator accelerator({.seed = o.seed});
  const bool imdb = std::filesystem::is_directory(std::filesystem::path(o.data) / "train" / "neg");
  const auto data = imdb ? read_folders(o) : read_collections(o);
  const auto vocab = learner::Vocab::of(pick(data.texts, data.train));
  std::vector<std::vector<int64_t>> numbers;
  for (const auto& text : data.texts) numbers.push_back(vocab.numbers(text));
  accelerator.print(data.texts.size(), " texts, ", vocab.size(), " words, ", o.classes.size(),
                    " classes; from scratch");
  const models::AwdLstmOptions shape{.vocab = vocab.size(),
                                     .embedding = o.embedding,
                                     .hidden = o.hidden,
                                     .layers = o.layers,
                                     .drop_mult = o.drop_mult};
  const std::array<double, 3> moms = {0.8, 0.7, 0.8};
  const auto regularised = [] { return learner::callbacks(learner::RNNCallback(), learner::RNNRegularizer(2, 1)); };

  models::AwdLanguageModel language(shape);
  const auto stream = [&](const std::vector<size_t>& part) {
    return own_rows(
        learner::language_model_batches(pick(numbers, part), {.batch_size = o.batch_size, .seq_len = o.seq_len},
                                        accelerator.rank(), accelerator.world_size()),
        accelerator);
  };
  const learner::Learner first(
      {.train = stream(data.train), .valid = stream(data.valid)}, language,
      {.loss = learner::cross_entropy(), .metrics = {learner::accuracy(), learner::perplexity()}, .moms = moms});
  first.add(learner::ModelResetter(), learner::GradientClip(0.4));
  first.add_cbs(regularised());
  first.distrib_ctx(accelerator, [&] { first.fit_one_cycle(o.language_epochs, o.lr); });

  models::AwdClassifier classifier(shape, static_cast<int64_t>(o.classes.size()), o.seq_len);
  {
    const torch::NoGradGuard no_grad;
    auto from = language->encoder->named_parameters();
    for (auto& parameter : classifier->encoder->named_parameters()) parameter.value().copy_(from[parameter.key()]);
  }
  const auto batches = [&](const std::vector<size_t>& part) {
    return even(learner::text_batches(pick(numbers, part), pick(data.classes, part),
                                      {.batch_size = o.batch_size, .max_len = 200}),
                accelerator);
  };
  const learner::Learner second(
      {.train = learner::shuffled(batches(data.train), o.seed), .valid = batches(data.valid), .vocab = o.classes},
      classifier,
      {.loss = learner::cross_entropy(),
       .metrics = {learner::accuracy()},
       .splitter = models::awd_groups,
       .moms = moms});
  second.add(learner::GradientClip(0.4));
  second.add_cbs(regularised());
  second.distrib_ctx(accelerator, [&] { second.fine_tune(o.epochs, 2 * o.lr, {.lr_mult = 10}); });
  accelerator.print("accuracy ", example::rounded(second.recorder().value_of("accuracy"), 4));
  accelerator.end_training();
}

int main(int argc, char** argv) {
  TextOptions o;
  CLI::App app("A text classifier by way of a language model.");
  app.add_option("--data", o.data, "folder with a file for each class, or IMDB's")->capture_default_str();
  app.add_option("--classes", o.classes, "names of the files");
  app.add_option("--epochs", o.epochs, "of the classifier, behind one with a frozen encoder")->capture_default_str();
  app.add_option("--language_epochs", o.language_epochs, "of the language model")->capture_default_str();
  app.add_option("--batch_size", o.batch_size, "of each process")->capture_default_str();
  app.add_option("--seq_len", o.seq_len, "steps that gradients go back")->capture_default_str();
  app.add_option("--embedding", o.embedding, "size of the word vectors (400 in the paper)")->capture_default_str();
  app.add_option("--hidden", o.hidden, "units of a layer (1152 in the paper)")->capture_default_str();
  app.add_option("--layers", o.layers, "LSTM layers (3 in the paper)")->capture_default_str();
  app.add_option("--lr", o.lr, "highest rate of the language model")->capture_default_str();
  app.add_option("--drop_mult", o.drop_mult, "factor of all dropouts")->capture_default_str();
  app.add_option("--limit", o.limit, "texts of each class");
  app.add_option("--seed", o.seed, "of weights, parts and dropout")->capture_default_str();
  return example::run(app, argc, argv, [&] { train_text(o); });
}
