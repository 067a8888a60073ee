// Golden cases of values: trackers, metrics, losses, MixUp and CutMix.
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <filesystem>

#include <map>
#include <numbers>
#include <set>

#include "hasten/learner/callbacks.h"
#include "hasten/learner/distributed.h"
#include "hasten/learner/metrics.h"
#include "hasten/learner/recorder.h"
#include "learner/golden_families.h"

namespace hasten::testing {

using namespace learner;

/// A folder that is gone with the object.
class Scratch {
 public:
  Scratch() : path_(std::filesystem::path(::testing::TempDir()) / text("hasten_learner_golden_", ::getpid())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct FileStamp {
  ino_t inode = 0;
  timespec time = {};
  bool operator==(const FileStamp& other) const {
    return inode == other.inode && time.tv_nsec == other.time.tv_nsec && time.tv_sec == other.time.tv_sec;
  }
};

json golden_tracker(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto values = doubles_of(input.at("values"));
  const auto monitor = input.at("monitor").get<std::string>();
  const auto& o = input.at("options");
  const Scratch folder;
  OneWeight model;
  json saves = json::array(), lrs = json::array();
  std::map<std::string, FileStamp> stamps;
  Learner* running = nullptr;
  // The recorded programs have one metric, by the name "score" where the column is to be absent.
  const std::string metric_name = monitor == "absent" ? "score" : monitor;
  const auto metric = value_metric(metric_name, [&] { return values.at(static_cast<size_t>(running->epoch())); });
  Learner learn({.train = ones(1), .valid = ones(1)}, model,
                {.loss = mse(), .opt_func = optim::fastai::sgd(), .metrics = {metric}, .path = folder.path()});
  running = &learn;
  const auto look = [&](Learner& own) {
    if (!std::filesystem::exists(folder.path() / "models")) return;
    for (const auto& file : std::filesystem::directory_iterator(folder.path() / "models")) {
      if (file.path().extension() != ".safetensors") continue;
      struct stat status {};
      stat(file.path().c_str(), &status);
      const FileStamp stamp{status.st_ino, status.st_mtim};
      if (const auto known = stamps.find(file.path().stem()); known != stamps.end() && known->second == stamp) continue;
      stamps[file.path().stem()] = stamp;
      saves.push_back({own.epoch(), file.path().stem()});
    }
  };
  learn.add(std::make_shared<Every>("watching", 80, [&](Learner& own, Event event) {
    if (event == Event::kBeforeValidate) {
      const at::NoGradGuard no_grad;
      model->weight.fill_(static_cast<double>(own.epoch()));
    }
    if (event == Event::kAfterEpoch || event == Event::kAfterFit) look(own);
    if (event == Event::kAfterEpoch) lrs.push_back(own.hypers().get("lr").back());
  }));
  const auto kind = input.at("callback").get<std::string>();
  const auto min_delta = o.value("min_delta", 0.0);
  const bool reset = o.value("reset_on_fit", true);
  std::optional<Better> comp;
  if (o.contains("comp"))
    comp = o.at("comp").get<std::string>().find("less") != std::string::npos ? Better::kLess : Better::kGreater;
  TrackerCallback* added = nullptr;
  const auto keep = [&](auto callback) {
    const auto shared = std::make_shared<decltype(callback)>(std::move(callback));
    added = shared.get();
    learn.add(shared);
  };
  json result = {{"error", nullptr}};
  if (kind == "SaveModelCallback") {
    int64_t every = 0;
    if (o.contains("every_epoch"))
      every = o.at("every_epoch").is_boolean() ? (o.at("every_epoch").get<bool>() ? 1 : 0)
                                               : o.at("every_epoch").get<int64_t>();
    SaveModelOptions options{.monitor = monitor, .comp = comp, .min_delta = min_delta, .reset_on_fit = reset};
    options.fname = o.value("fname", "model");
    options.every_epoch = every;
    options.at_end = o.value("at_end", false);
    options.with_opt = o.value("with_opt", false);
    keep(SaveModel(options));
  } else if (kind == "EarlyStoppingCallback") {
    const auto patience = o.value("patience", int64_t{1});
    keep(EarlyStopping(
        {.monitor = monitor, .comp = comp, .min_delta = min_delta, .patience = patience, .reset_on_fit = reset}));
  } else if (kind == "ReduceLROnPlateau") {
    // Member by member: where an initializer of an aggregate throws, g++ 12 destroys what it has made twice.
    ReduceLROnPlateauOptions options{.monitor = monitor, .comp = comp, .min_delta = min_delta, .reset_on_fit = reset};
    options.patience = o.value("patience", int64_t{1});
    options.factor = o.value("factor", 10.0);
    options.min_lr = o.value("min_lr", 0.0);
    keep(ReduceLROnPlateau(options));
  } else {
    keep(TrackerCallback({.monitor = monitor, .comp = comp, .min_delta = min_delta, .reset_on_fit = reset}));
  }
  learn.no_logging([&] {
    for (int i = 0; i < input.value("fits", 1); ++i) {
      learn.fit(static_cast<int64_t>(values.size()), input.at("lr").get<double>());
    }
  });
  result["last_epoch"] = learn.epoch();
  result["saves"] = saves;
  result["lrs"] = lrs;
  result["weights_of_epoch"] = model->weight.item<double>();
  result["best"] = number_of(added->best);
  if (const auto* stopping = dynamic_cast<EarlyStopping*>(added); stopping && stopping->no_improvement_since) {
    result["no_improvement_since"] = *stopping->no_improvement_since;
  }
  return result;
}

/// Our rule: nothing was better, so the last weights stay and there is no error.
json kept_the_last(const GoldenCase& golden) {
  const auto last = golden.expected.value("last_epoch", static_cast<int64_t>(golden.input.at("values").size()) - 1);
  return {{"error", nullptr}, {"weights_of_epoch", static_cast<double>(last)}};
}

Metric metric_named(const std::string& name) {
  const std::map<std::string, std::function<Metric()>> kMetrics = {
      {"mse", [] { return mse_metric(); }},
      {"mae", [] { return mae_metric(); }},
      {"accuracy", [] { return accuracy(); }},
      {"error_rate", [] { return error_rate(); }},
      {"top_k_accuracy", [] { return top_k_accuracy(); }},
      {"BalancedAccuracy", [] { return balanced_accuracy(); }},
      {"CohenKappa", [] { return cohen_kappa(); }},
      {"HammingLoss", [] { return hamming_loss(); }},
      {"MatthewsCorrCoef", [] { return matthews_corr_coef(); }},
      {"F1Score_macro", [] { return f1_score({.average = Averaging::kMacro}); }},
      {"F1Score_micro", [] { return f1_score({.average = Averaging::kMicro}); }},
      {"F1Score_weighted", [] { return f1_score({.average = Averaging::kWeighted}); }},
      {"FBeta2_macro", [] { return fbeta(2, {.average = Averaging::kMacro}); }},
      {"Jaccard_macro", [] { return jaccard({.average = Averaging::kMacro}); }},
      {"Precision_macro", [] { return learner::precision({.average = Averaging::kMacro}); }},
      {"Recall_macro", [] { return recall({.average = Averaging::kMacro}); }},
      {"RocAuc", [] { return roc_auc(); }},
      {"APScoreBinary", [] { return ap_score_binary(); }},
      {"F1Score", [] { return f1_score(); }},
      {"FBeta2", [] { return fbeta(2); }},
      {"Jaccard", [] { return jaccard(); }},
      {"Precision", [] { return learner::precision(); }},
      {"Recall", [] { return recall(); }},
      {"RocAucBinary", [] { return roc_auc_binary(); }},
      {"APScoreMulti", [] { return ap_score_multi(); }},
      {"F1ScoreMulti", [] { return f1_score_multi(); }},
      {"FBetaMulti2", [] { return fbeta_multi(2); }},
      {"HammingLossMulti", [] { return hamming_loss_multi(); }},
      {"JaccardMulti", [] { return jaccard_multi(); }},
      {"PrecisionMulti", [] { return precision_multi(); }},
      {"RecallMulti", [] { return recall_multi(); }},
      {"RocAucMulti", [] { return roc_auc_multi(); }},
      {"accuracy_multi", [] { return accuracy_multi(); }},
      {"MatthewsCorrCoefMulti", [] { return matthews_corr_coef_multi(); }},
      {"ExplainedVariance", [] { return explained_variance(); }},
      {"PearsonCorrCoef", [] { return pearson_corr_coef(); }},
      {"R2Score", [] { return r2_score(); }},
      {"SpearmanCorrCoef", [] { return spearman_corr_coef(); }},
      {"exp_rmspe", [] { return exp_rmspe(); }},
      {"msle", [] { return msle_metric(); }},
      {"rmse", [] { return rmse(); }},
      {"Dice", [] { return dice_metric(); }},
      {"DiceMulti", [] { return dice_multi(); }},
      {"JaccardCoeff", [] { return jaccard_coeff(); }},
      {"JaccardCoeffMulti", [] { return jaccard_coeff_multi(); }},
      {"foreground_acc", [] { return foreground_acc(); }},
      {"BrierScore", [] { return brier_score(); }},
      {"Perplexity", [] { return perplexity(); }}};
  const auto found = kMetrics.find(name);
  if (found == kMetrics.end()) throw std::runtime_error("unknown metric " + name);
  return found->second();
}

json golden_metrics(const GoldenCase& golden) {
  const auto predictions = tensor_of(golden.input.at("pred")), targets = tensor_of(golden.input.at("y"));
  json result = json::object();
  for (const auto& [name, value] : golden.expected.items()) {
    const auto metric = metric_named(name);
    int64_t row = 0;
    for (const auto& size : golden.input.at("batch_sizes")) {
      const auto rows = size.get<int64_t>();
      const auto p = predictions.slice(0, row, row + rows), t = targets.slice(0, row, row + rows);
      metric.accumulate({.prediction = p, .target = t, .loss = at::zeros({}), .size = rows});
      row += rows;
    }
    result[name] = number_of(metric.value());
  }
  return result;
}

/// Our rule: foreground_acc is over pixels.
json over_pixels(const GoldenCase& golden) {
  const auto classes = tensor_of(golden.input.at("pred")).argmax(1).reshape({-1}),
             targets = tensor_of(golden.input.at("y")).reshape({-1});
  double hits = 0, all = 0;
  for (int64_t i = 0; i < targets.numel(); ++i) {
    if (targets[i].item<int64_t>() == 0) continue;
    ++all;
    hits += classes[i].item<int64_t>() == targets[i].item<int64_t>() ? 1 : 0;
  }
  return {{"foreground_acc", hits / all}};
}

/// "LabelSmoothing_0.5_sum": the loss with options behind it.
static std::optional<Loss> loss_with_options(const std::string& name) {
  const auto split = name.find('_');
  const std::string base = name.substr(0, split);
  std::optional<double> number;
  Reduction reduction = Reduction::kMean;
  for (size_t begin = split; begin != std::string::npos;) {
    const size_t end = name.find('_', begin + 1);
    std::string word = name.substr(begin + 1, end == std::string::npos ? end : end - begin - 1);
    begin = end;
    for (const char* prefix : {"gamma", "eps"}) {
      if (word.starts_with(prefix)) word = word.substr(std::string(prefix).size());
    }
    if (word == "sum") {
      reduction = Reduction::kSum;
    } else if (word == "none") {
      reduction = Reduction::kNone;
    } else if (word != "mean") {
      if (word.find_first_not_of("0123456789.") != std::string::npos) return std::nullopt;
      number = std::stod(word);
    }
  }
  if (base == "LabelSmoothing" || base == "LabelSmoothingCrossEntropy")
    return label_smoothing(number.value_or(0.1), {.reduction = reduction});
  if (base == "FocalLossFlat") return focal(number.value_or(2.0), {.reduction = reduction});
  if (number) return std::nullopt;
  if (base == "CrossEntropyLossFlat") return cross_entropy({.reduction = reduction});
  return std::nullopt;
}

static Loss golden_loss(const std::string& name) {
  const std::map<std::string, Loss> kLosses = {
      {"CrossEntropyLossFlat", cross_entropy()},
      {"CrossEntropyLossFlat_axis1", cross_entropy({.axis = 1})},
      {"FocalLossFlat", focal()},
      {"FocalLossFlat_gamma0.5", focal(0.5)},
      {"LabelSmoothing", label_smoothing()},
      {"LabelSmoothingCrossEntropy", label_smoothing()},
      {"BCEWithLogitsLossFlat", bce_with_logits()},
      {"BCELossFlat", bce()},
      {"MSELossFlat", mse()},
      {"L1LossFlat", l1()},
      {"DiceLoss", dice()},
      {"DiceLoss_mean_sq", dice({.square_in_union = true, .reduction = Reduction::kMean})}};
  const auto found = kLosses.find(name);
  if (found != kLosses.end()) return found->second;
  if (const auto loss = loss_with_options(name)) return *loss;
  throw std::runtime_error("unknown loss " + name);
}

json golden_losses(const GoldenCase& golden) {
  const auto loss = golden_loss(golden.input.at("loss").get<std::string>());
  auto prediction = tensor_of(golden.input.at("pred")).requires_grad_();
  const auto value = loss(prediction, tensor_of(golden.input.at("y")));
  value.backward();
  const auto activated = loss.activation(prediction.detach());
  auto decoded = loss.decodes(activated);
  if (decoded.scalar_type() == at::kBool) decoded = decoded.to(at::kLong);
  return {{"loss", json_of(value.detach())},
          {"grad", json_of(prediction.grad())},
          {"activation", json_of(activated)},
          {"decoded", json_of(decoded)}};
}

json golden_mix(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto x = tensor_of(input.at("x")), y = tensor_of(input.at("y")), prediction = tensor_of(input.at("pred"));
  const auto loss = loss_of(input.at("loss"));
  json result;
  const auto draws = [&](const Learner&) {
    MixDraws own;
    own.beta = tensor_of(input.at("beta")).to(at::kFloat);
    own.permutation = tensor_of(input.at("perm"));
    if (!input.at("centre_x_y").is_null()) {
      own.centre_x = input.at("centre_x_y").at(0);
      own.centre_y = input.at("centre_x_y").at(1);
    }
    return own;
  };
  OneWeight weight;
  Learner learn({.train = std::vector<Batch>{{{x}, {y}}}},
                learner::AnyModel(weight, [&](const Tensors&) { return Tensors{prediction + 0 * weight->weight}; }),
                {.loss = loss});
  std::shared_ptr<MixHandler> mixing;
  if (input.at("mix") == "MixUp") {
    const auto own = std::make_shared<MixUp>();
    mixing = own;
    learn.add(own);
  } else {
    const auto own = std::make_shared<CutMix>();
    mixing = own;
    learn.add(own);
  }
  mixing->draws = draws;
  result["stacked"] = loss.class_targets();
  learn.add(std::make_shared<Every>("looking", 90, [&](Learner& own, Event event) {
    if (event != Event::kAfterLoss || !own.training()) return;
    result["lam"] = json_of(mixing->lam);
    result["x"] = json_of(own.inputs().front());
    result["loss"] = json_of(own.loss());
    if (!loss.class_targets()) result["y"] = json_of(own.targets().front());
  }));
  learn.no_logging([&] { learn.fit(1); });
  return result;
}

}  // namespace hasten::testing
