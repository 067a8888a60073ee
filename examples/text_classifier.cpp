// A text classifier in ULMFiT's two steps (Howard and Ruder, 2018): an AWD-LSTM language model on all texts, then a classifier with its
// encoder, fine-tuned group by group.
//
//   ./text_classifier                               Debian's fortunes: which collection does a saying come from
//   hasten launch -n 2 ./text_classifier
//   ./text_classifier --data FOLDER                 one file a class, texts separated by lines of a single %
//
// Nothing pretrained is used: from scratch.
#include <hasten/hasten.h>
#include <hasten/learner/callbacks.h>
#include <hasten/learner/distributed.h>
#include <hasten/learner/learner.h>
#include <hasten/learner/metrics.h>
#include <hasten/learner/recorder.h>
#include <hasten/learner/text_loaders.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "models/awd_lstm.h"

namespace {

namespace learner = hasten::learner;

struct Options {
  std::string data = "/usr/share/games/fortunes";
  std::vector<std::string> classes = {"computers", "cookie", "literature", "people", "platitudes", "science", "startrek", "wisdom"};
  int epochs = 4, language_epochs = 2;
  int64_t batch_size = 32, embedding = 100, hidden = 200, layers = 2;
  double lr = 5e-3, drop_mult = 0.5;
  uint64_t seed = 1;
  int64_t limit = 1'000'000;
  int threads = 0;
};

struct Texts {
  std::vector<std::string> texts;
  std::vector<int64_t> classes;
};

Texts read_texts(const Options& options) {
  Texts result;
  for (size_t i = 0; i < options.classes.size(); ++i) {
    const auto path = std::filesystem::path(options.data) / options.classes[i];
    std::ifstream file(path);
    if (!file) {
      throw hasten::DataError(hasten::Origin{"text_classifier"}, path.string(), "cannot read ", path.string(),
                              "; install Debian's package fortunes, or name a folder and its files with --data and --classes.");
    }
    std::string text;
    int64_t count = 0;
    const auto keep = [&] {
      if (text.find_first_not_of(" \n\t") != std::string::npos && count++ < options.limit) {
        result.texts.push_back(text);
        result.classes.push_back(static_cast<int64_t>(i));
      }
      text.clear();
    };
    for (std::string line; std::getline(file, line);) {
      if (line == "%") keep();
      else text += line + "\n";
    }
    keep();
  }
  return result;
}

/// The same parts on every rank: every fifth text of a random order is held out.
std::pair<std::vector<size_t>, std::vector<size_t>> split(size_t count, uint64_t seed) {
  torch::manual_seed(static_cast<int64_t>(seed));
  const auto order = torch::randperm(static_cast<int64_t>(count));
  std::pair<std::vector<size_t>, std::vector<size_t>> parts;
  for (size_t i = 0; i < count; ++i) (i % 5 == 0 ? parts.second : parts.first).push_back(static_cast<size_t>(order[static_cast<int64_t>(i)].item<int64_t>()));
  return parts;
}

template <class T>
std::vector<T> pick(const std::vector<T>& from, const std::vector<size_t>& which) {
  std::vector<T> result;
  for (const size_t i : which) result.push_back(from[i]);
  return result;
}

/// All ranks get as many batches: what is left over is dropped.
std::vector<learner::Batch> even(std::vector<learner::Batch> batches, const hasten::Accelerator& accelerator) {
  batches.resize(batches.size() / static_cast<size_t>(accelerator.world_size()) * static_cast<size_t>(accelerator.world_size()));
  return batches;
}

/// A rank's own rows, seen as every rank's: batch k of rank r is the k-th that this rank takes.
std::vector<learner::Batch> own_rows(const std::vector<learner::Batch>& rows, const hasten::Accelerator& accelerator) {
  std::vector<learner::Batch> all;
  for (const auto& batch : rows) all.insert(all.end(), static_cast<size_t>(accelerator.world_size()), batch);
  return all;
}

void run(const Options& options) {
  if (options.threads > 0) torch::set_num_threads(options.threads);
  const hasten::Accelerator accelerator(hasten::AcceleratorOptions{.seed = options.seed});
  const auto data = read_texts(options);
  const auto [train_part, valid_part] = split(data.texts.size(), options.seed);
  const auto vocab = learner::Vocab::of(pick(data.texts, train_part));
  std::vector<std::vector<int64_t>> numbers;
  for (const auto& text : data.texts) numbers.push_back(vocab.numbers(text));
  accelerator.print(data.texts.size(), " texts, ", vocab.size(), " words, ", options.classes.size(), " classes; from scratch");
  const models::AwdLstmOptions model{.vocab = vocab.size(), .embedding = options.embedding, .hidden = options.hidden, .layers = options.layers,
                                     .drop_mult = options.drop_mult};
  const std::array<double, 3> moms = {0.8, 0.7, 0.8};
  const auto regularised = [] { return learner::callbacks(learner::RNNCallback(), learner::RNNRegularizer(2, 1)); };

  models::AwdLanguageModel language(model);
  const auto stream = [&](const std::vector<size_t>& part) {
    return own_rows(learner::language_model_batches(pick(numbers, part), {.batch_size = options.batch_size / 2, .seq_len = 40}, accelerator.rank(),
                                                    accelerator.world_size()), accelerator);
  };
  const learner::Learner first({.train = stream(train_part), .valid = stream(valid_part)}, language,
                               {.loss = learner::cross_entropy(), .metrics = {learner::accuracy(), learner::perplexity()}, .moms = moms});
  first.add(learner::ModelResetter(), learner::GradientClip(0.4));
  first.add_cbs(regularised());
  first.distrib_ctx(accelerator, [&] { first.fit_one_cycle(options.language_epochs, options.lr); });

  models::AwdClassifier classifier(model, static_cast<int64_t>(options.classes.size()));
  {
    const torch::NoGradGuard no_grad;
    auto from = language->encoder->named_parameters();
    for (auto& parameter : classifier->encoder->named_parameters()) parameter.value().copy_(from[parameter.key()]);
  }
  const auto batches = [&](const std::vector<size_t>& part) {
    return even(learner::text_batches(pick(numbers, part), pick(data.classes, part), {.batch_size = options.batch_size, .max_len = 200}), accelerator);
  };
  learner::Loaders loaders{.train = batches(train_part), .valid = batches(valid_part), .vocab = options.classes};
  const learner::Learner second(loaders, classifier,
                                {.loss = learner::cross_entropy(), .metrics = {learner::accuracy()}, .splitter = learner::named_groups({"encoder", "head"}), .moms = moms});
  second.add(learner::GradientClip(0.4));
  second.add_cbs(regularised());
  second.distrib_ctx(accelerator, [&] { second.fine_tune(options.epochs, options.lr * 2, {.lr_mult = 10}); });
  accelerator.print("accuracy ", second.recorder().value_of("accuracy"));
  accelerator.end_training();
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("A text classifier by way of a language model.");
  app.add_option("--data", options.data, "folder with a file for each class")->capture_default_str();
  app.add_option("--classes", options.classes, "names of the files");
  app.add_option("--epochs", options.epochs, "of the classifier, behind one with a frozen encoder")->capture_default_str();
  app.add_option("--language-epochs", options.language_epochs, "of the language model")->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "of each process")->capture_default_str();
  app.add_option("--embedding", options.embedding, "size of the word vectors (400 in the paper)")->capture_default_str();
  app.add_option("--hidden", options.hidden, "units of a layer (1152 in the paper)")->capture_default_str();
  app.add_option("--layers", options.layers, "LSTM layers (3 in the paper)")->capture_default_str();
  app.add_option("--lr", options.lr, "highest rate of the language model")->capture_default_str();
  app.add_option("--drop-mult", options.drop_mult, "factor of all dropouts")->capture_default_str();
  app.add_option("--limit", options.limit, "texts of each class");
  app.add_option("--seed", options.seed, "of weights, parts and dropout")->capture_default_str();
  app.add_option("--threads", options.threads, "of each process (default: libtorch's choice)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const hasten::UsageError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const hasten::DataError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
  return 0;
}
