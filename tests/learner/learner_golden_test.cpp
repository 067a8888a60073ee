// The Learner against values recorded from fastai 2.8.12: every family of learner.json.
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <numbers>
#include <numeric>
#include <set>

#include "hasten/learner/callbacks.h"
#include "hasten/learner/distributed.h"
#include "hasten/learner/files.h"
#include "hasten/learner/metrics.h"
#include "hasten/learner/recorder.h"
#include "learner/golden_models.h"
#include "support/golden.h"
#include "support/ranks.h"

namespace hasten::testing {
namespace {

using namespace learner;

using Outcome = std::function<json(const GoldenCase&)>;

/// A model of one weight for cases about events and values only.
struct OneWeightImpl : torch::nn::Module {
  OneWeightImpl() { weight = register_parameter("weight", at::zeros({1})); }
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight;
};
TORCH_MODULE(OneWeight);

std::vector<Batch> ones(int64_t count) {
  return std::vector<Batch>(static_cast<size_t>(count), Batch{{at::ones({2, 1})}, {at::ones({2, 1})}});
}

std::optional<Event> event_named(const std::string& name) {
  for (size_t i = 0; i < kNumEvents; ++i) {
    if (name_of(static_cast<Event>(i)) == name) return static_cast<Event>(i);
  }
  return std::nullopt;
}

/// Calls a function at every event.
struct Every : Callback {
  using Function = std::function<void(Learner&, Event)>;
  Every(std::string own_name, int own_order, Function own) : called(std::move(own_name)), place(own_order), function(std::move(own)) {}
  std::string_view name() const override { return called; }
  int order() const override { return place; }
#define HASTEN_EVENT(method, event) \
  void method(Learner& learn) override { function(learn, Event::event); }
  HASTEN_EVENT(before_fit, kBeforeFit)
  HASTEN_EVENT(before_epoch, kBeforeEpoch)
  HASTEN_EVENT(before_train, kBeforeTrain)
  HASTEN_EVENT(before_batch, kBeforeBatch)
  HASTEN_EVENT(after_pred, kAfterPred)
  HASTEN_EVENT(after_loss, kAfterLoss)
  HASTEN_EVENT(before_backward, kBeforeBackward)
  HASTEN_EVENT(after_cancel_backward, kAfterCancelBackward)
  HASTEN_EVENT(after_backward, kAfterBackward)
  HASTEN_EVENT(before_step, kBeforeStep)
  HASTEN_EVENT(after_cancel_step, kAfterCancelStep)
  HASTEN_EVENT(after_step, kAfterStep)
  HASTEN_EVENT(after_cancel_batch, kAfterCancelBatch)
  HASTEN_EVENT(after_batch, kAfterBatch)
  HASTEN_EVENT(after_cancel_train, kAfterCancelTrain)
  HASTEN_EVENT(after_train, kAfterTrain)
  HASTEN_EVENT(before_validate, kBeforeValidate)
  HASTEN_EVENT(after_cancel_validate, kAfterCancelValidate)
  HASTEN_EVENT(after_validate, kAfterValidate)
  HASTEN_EVENT(after_cancel_epoch, kAfterCancelEpoch)
  HASTEN_EVENT(after_epoch, kAfterEpoch)
  HASTEN_EVENT(after_cancel_fit, kAfterCancelFit)
  HASTEN_EVENT(after_fit, kAfterFit)
#undef HASTEN_EVENT
  std::string called;
  int place;
  Function function;
};

std::shared_ptr<Every> recording(json& rows) {
  return std::make_shared<Every>("recording", -5, [&rows](Learner& learn, Event event) {
    const json iter = is_inner(event) ? json(learn.iter()) : json();
    rows.push_back({std::string(name_of(event)), learn.epoch(), iter, learn.training() ? 1 : 0});
  });
}

const std::map<std::string, Scope> kScopes = {
    {"CancelFitException", Scope::kFit},     {"CancelEpochException", Scope::kEpoch},       {"CancelTrainException", Scope::kTrain},
    {"CancelValidException", Scope::kValid}, {"CancelBatchException", Scope::kBatch},       {"CancelBackwardException", Scope::kBackward},
    {"CancelStepException", Scope::kStep}};

json events(const GoldenCase& golden) {
  const auto& input = golden.input;
  json rows = json::array(), escapes;
  const auto& raise = input.at("raise");
  const auto exception = raise.at("exception").get<std::string>();
  const auto event = event_named(raise.at("event").get<std::string>());
  const auto raising = std::make_shared<Every>("raising", 20, [&](Learner& learn, Event now) {
    if (now != event || learn.epoch() != raise.at("epoch").get<int64_t>()) return;
    if (!raise.at("iter").is_null() && (learn.iter() != raise.at("iter").get<int64_t>() || learn.training() != raise.at("training").get<bool>())) return;
    const auto scope = kScopes.find(exception);
    if (scope == kScopes.end()) throw std::invalid_argument(exception);
    learn.cancel(scope->second);
  });
  Learner learn({.train = ones(input.at("train_batches")), .valid = ones(input.at("valid_batches"))}, OneWeight(), {.loss = mse(), .opt_func = optim::fastai::sgd()});
  learn.add(recording(rows), raising);
  try {
    learn.no_logging([&] { learn.fit(input.at("n_epoch").get<int64_t>()); });
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("callback 'raising' in " + raise.at("event").get<std::string>()), std::string::npos) << error.what();
    escapes = exception;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(exception), std::string::npos) << error.what();
    escapes = exception;
  }
  return {{"events", rows}, {"escapes", escapes}};
}

/// Our rule: behind an exception the after_… events of all open scopes are called, from the inside out.
json unwound(const GoldenCase& golden) {
  auto rows = golden.expected.at("events");
  if (golden.expected.at("escapes").is_null()) return json::object();
  std::vector<std::string> open;
  for (const auto& row : rows) {
    const auto name = row[0].get<std::string>();
    if (name.rfind("before_", 0) == 0) open.push_back(name.substr(7));
    if (name.rfind("after_", 0) == 0 && !open.empty() && open.back() == name.substr(6)) open.pop_back();
    if (name.rfind("after_cancel_", 0) == 0) continue;
  }
  const json last = rows.back();
  for (auto scope = open.rbegin(); scope != open.rend(); ++scope) {
    const bool inner = *scope == "batch" || *scope == "step" || *scope == "backward";
    rows.push_back({"after_" + *scope, last[1], inner ? last[2] : json(), last[3]});
  }
  return {{"events", rows}};
}

json calls(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto call = input.at("call").get<std::string>();
  json rows = json::array();
  const auto valid = input.value("valid_batches", 0);
  Learner learn({.train = ones(input.at("train_batches")), .valid = ones(valid)}, OneWeight(), {.loss = mse(), .opt_func = optim::fastai::sgd()});
  learn.add(recording(rows));
  learn.no_logging([&] {
    if (call == "get_preds") learn.get_preds();
    else if (call == "validate") learn.validate();
    else if (call == "fit_no_valid" || call == "fit") learn.fit(1);
    else if (call == "fit_two" || call == "fit_2") learn.fit(2);
    else if (call == "start_epoch") learn.fit(3, {}, {.start_epoch = 2});
    else if (call == "with_block") learn.with_events([] {});
    else if (call == "get_preds_train") learn.get_preds({.ds_idx = 0});
    else rows = "unknown call";
  });
  return {{"events", rows}, {"escapes", nullptr}};
}

json described(const Callback& callback) {
  return {{"order", callback.order()},
          {"run_train", callback.phases() != Phases::kValid},
          {"run_valid", callback.phases() != Phases::kTrain},
          {"remove_on_fetch", callback.removed_for_predictions()}};
}

Accelerator lone() { return Accelerator(process::Process(process::RankInfo{}, comm::Group())); }

json order(const GoldenCase& golden) {
  Learner learn({.train = ones(1)}, OneWeight(), {.loss = mse()});
  learn.remove_cb("progress");
  if (golden.input.contains("added")) {
    for (const auto& one : golden.input.at("added")) learn.add(std::make_shared<Every>(one[0].get<std::string>(), one[1].get<int>(), [](Learner&, Event) {}));
    json names = json::array();
    for (const auto& callback : learn.ordered_cbs(Event::kBeforeFit)) {
      const std::string name(callback->name());
      names.push_back(name == "train_eval" ? "TrainEvalCallback" : name == "recorder" ? "Recorder" : name);
    }
    return {{"before_fit", names}};
  }
  json list = {{"TrainEvalCallback", described(TrainEval())}, {"Recorder", described(Recorder())}, {"ProgressCallback", described(Progress())},
               {"CSVLogger", described(CSVLogger())}, {"MixedPrecision", described(MixedPrecision())}, {"GradientClip", described(GradientClip())},
               {"GradientAccumulation", described(GradientAccumulation())}, {"TrackerCallback", described(TrackerCallback())},
               {"SaveModelCallback", described(SaveModel())}, {"ReduceLROnPlateau", described(ReduceLROnPlateau())},
               {"EarlyStoppingCallback", described(EarlyStopping())}, {"TerminateOnNaNCallback", described(TerminateOnNaN())},
               {"ParamScheduler", described(ParamScheduler({}))}, {"LRFinder", described(LrFinder())}, {"MixUp", described(MixUp())},
               {"CutMix", described(CutMix())}, {"BnFreeze", described(BnFreeze())}, {"ShortEpochCallback", described(ShortEpoch())},
               {"SkipToEpoch", described(SkipToEpoch(1))}, {"GatherPredsCallback", described(GatherPreds())},
               {"FetchPredsCallback", described(FetchPreds())}, {"ParallelTrainer", described(ParallelTrainer())},
               {"DistributedTrainer", described(DistributedTrainer(lone()))}};
  json names = json::array();
  for (const auto& entry : learn.cbs()) names.push_back(entry.callback->name() == "train_eval" ? "TrainEvalCallback" : "Recorder");
  return {{"callbacks", list}, {"default", names}};
}

/// Our rule: C++ tensors need no CastToTensor.
json without_cast(const GoldenCase& golden) {
  if (!golden.expected.contains("default")) return json::object();
  auto list = golden.expected.at("callbacks");
  list.erase("CastToTensor");
  json names = json::array();
  for (const auto& name : golden.expected.at("default")) {
    if (name != "CastToTensor") names.push_back(name);
  }
  return {{"callbacks", list}, {"default", names}};
}

Schedule schedule_of(const json& part) {
  const auto name = part[0].get<std::string>();
  const auto start = part[1].get<double>(), end = part[2].get<double>();
  if (name == "SchedLin") return sched_lin(start, end);
  if (name == "SchedCos") return sched_cos(start, end);
  if (name == "SchedNo") return sched_no(start, end);
  if (name == "SchedExp") return sched_exp(start, end);
  throw std::runtime_error("unknown schedule " + name);
}

json schedule(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto name = input.at("function").get<std::string>();
  Schedule function;
  if (name == "SchedPoly") {
    function = sched_poly(input.at("start"), input.at("end"), input.at("power").get<double>());
  } else if (name == "combine_scheds") {
    std::vector<Schedule> parts;
    for (const auto& part : input.at("parts")) parts.push_back(schedule_of(part));
    function = combine(input.at("pcts").get<std::vector<double>>(), parts);
  } else if (name == "combined_cos") {
    function = combined_cos(input.at("pct"), input.at("start"), input.at("middle"), input.at("end"));
  } else {
    function = schedule_of({name, input.at("start"), input.at("end")});
  }
  json values = json::array();
  for (const auto& at : input.at("at")) values.push_back(function(at.get<double>()));
  return {{"values", values}};
}

/// A chain of Linear(1, 1), one a layer group.
Learner group_learner(const json& input, const std::function<void(Learner&)>& after_batch) {
  const auto groups = input.value("groups", 1);
  torch::nn::Sequential net;
  std::vector<size_t> firsts;
  for (int i = 0; i < groups; ++i) {
    net->push_back(torch::nn::Linear(1, 1));
    firsts.push_back(static_cast<size_t>(i));
  }
  Learner learn({.train = ones(input.value("batches", 1))}, net,
                {.loss = mse(), .lr = input.value("learner_lr", 1e-3), .splitter = child_groups(firsts)});
  learn.add(std::make_shared<Every>("after", 100, [after_batch](Learner& own, Event event) {
    if (event == Event::kAfterBatch && own.training()) after_batch(own);
  }));
  return learn;
}

json fits(const GoldenCase& golden) {
  const auto& input = golden.input;
  json lr = json::array(), mom = json::array(), pct = json::array(), trains = json::array();
  const auto learn = group_learner(input, [&](Learner& own) {
    lr.push_back(json_of(own.hypers().get("lr")));
    mom.push_back(json_of(own.hypers().get("mom")));
    pct.push_back(own.pct_train());
    json each = json::array();
    for (const auto& group : own.groups()) {
      each.push_back(std::any_of(group.parameters.begin(), group.parameters.end(), [](const auto& p) { return p.requires_grad(); }));
    }
    trains.push_back(each);
  });
  const auto epochs = input.at("epochs").get<int64_t>();
  const auto number = [&](const char* key, double otherwise) { return input.value(key, otherwise); };
  const auto rate = [&](const char* key) { return input.contains(key) && !input.at(key).is_null() ? std::optional(hyper_of(input.at(key))) : std::nullopt; };
  std::optional<std::array<double, 3>> moms;
  if (input.contains("moms") && !input.at("moms").is_null()) moms = input.at("moms").get<std::array<double, 3>>();
  std::optional<double> wd;
  if (input.contains("wd") && !input.at("wd").is_null()) wd = input.at("wd").get<double>();
  const auto start = input.value("start_epoch", int64_t{0});
  learn.no_logging([&] {
    const auto call = input.at("call").get<std::string>();
    if (call == "fit_one_cycle") {
      learn.fit_one_cycle(epochs, rate("lr_max"), {.div = number("div", 25), .div_final = number("div_final", 1e5), .pct_start = number("pct_start", 0.25),
                                                   .wd = wd, .moms = moms, .start_epoch = start});
    } else if (call == "fit_flat_cos") {
      learn.fit_flat_cos(epochs, rate("lr"), {.div_final = number("div_final", 1e5), .pct_start = number("pct_start", 0.75), .wd = wd, .start_epoch = start});
    } else if (call == "fit_sgdr") {
      learn.fit_sgdr(epochs, input.value("cycle_len", 1), rate("lr_max"), {.cycle_mult = input.value("cycle_mult", 2), .wd = wd});
    } else if (call == "fine_tune") {
      learn.fine_tune(epochs, number("base_lr", 2e-3), {.freeze_epochs = input.value("freeze_epochs", 1), .lr_mult = number("lr_mult", 100),
                                                        .pct_start = number("pct_start", 0.3), .div = number("div", 5), .wd = wd, .moms = moms});
    } else {
      lr = "unknown call";
    }
  });
  return {{"lr", lr}, {"mom", mom}, {"pct", pct}, {"trains", trains}};
}

/// Positions in double: an SGDR cycle begins at its batch, and not a rounding later.
json sgdr_in_double(const GoldenCase& golden) {
  const auto& input = golden.input;
  if (golden.family != "fit_sgdr") return json::object();
  const auto batches = input.at("batches").get<int64_t>();
  json lr = json::array();
  int64_t length = input.value("cycle_len", int64_t{1});
  const auto top = input.at("lr_max").is_array() ? input.at("lr_max")[1].get<double>() : input.at("lr_max").get<double>();
  const auto groups = input.value("groups", 1);
  for (int64_t cycle = 0; cycle < input.at("epochs").get<int64_t>(); ++cycle, length *= input.value("cycle_mult", int64_t{2})) {
    for (int64_t i = 0; i < length * batches; ++i) {
      const double part = static_cast<double>(i) / static_cast<double>(length * batches);
      lr.push_back(std::vector<double>(static_cast<size_t>(groups), top * (1 + std::cos(std::numbers::pi * part)) / 2));
    }
  }
  return {{"lr", lr}};
}

json hypers(const GoldenCase& golden) {
  const auto learn = group_learner(golden.input, [](Learner&) {});
  const auto& value = golden.input.at("value");
  const auto kind = golden.input.at("kind").get<std::string>();
  try {
    if (kind == "slice") learn.hypers().set("lr", hyper_of(value));
    else if (value.is_array()) learn.hypers().set("lr", value.get<std::vector<double>>());
    else learn.hypers().set("lr", value.get<double>());
  } catch (const UsageError&) {
    return golden_error("AssertionError");
  }
  return {{"lr", json_of(learn.hypers().get("lr"))}};
}

/// A Sequential that can lie in another one.
struct PairImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return SequentialImpl::forward(x); }
};
TORCH_MODULE(Pair);

json freeze(const GoldenCase& golden) {
  const auto& input = golden.input;
  torch::nn::Sequential net;
  std::vector<size_t> firsts;
  for (int i = 0; i < input.at("groups").get<int>(); ++i) {
    net->push_back(Pair(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2)));
    firsts.push_back(static_cast<size_t>(i));
  }
  Learner learn({.train = ones(1)}, net, {.loss = mse(), .splitter = child_groups(firsts), .train_bn = input.value("train_bn", true)});
  try {
    learn.freeze_to(input.at("freeze_to").get<int64_t>());
  } catch (const UsageError&) {
    return {{"refused", true}};
  }
  json grads = json::object();
  for (const auto& parameter : net->named_parameters()) grads[parameter.key()] = parameter.value().requires_grad();
  return {{"frozen_idx", learn.frozen_groups()}, {"requires_grad", grads}};
}

/// Our rule: freezing beyond the groups is refused (fastai freezes all and prints a line).
json beyond_is_refused(const GoldenCase& golden) {
  const auto groups = golden.input.at("groups").get<int64_t>(), n = golden.input.at("freeze_to").get<int64_t>();
  return n > groups || n < -groups ? json{{"error", "refused"}} : json::object();
}

json suggestions_of(const std::vector<double>& lrs, const std::vector<double>& losses) {
  json result = json::object();
  for (const auto how : {Suggestion::kValley, Suggestion::kSlide, Suggestion::kMinimum, Suggestion::kSteep}) {
    try {
      result[name_of(how)] = suggest(how, lrs, losses);
    } catch (const UsageError&) {
      result[name_of(how)] = golden_error("UsageError");
    }
  }
  return result;
}

std::vector<double> doubles_of(const json& list) {
  std::vector<double> values;
  flatten(list, values);
  return values;
}

json suggestion(const GoldenCase& golden) { return suggestions_of(doubles_of(golden.input.at("lrs")), doubles_of(golden.input.at("losses"))); }

std::vector<at::Tensor> copies(const torch::nn::Module& module) {
  std::vector<at::Tensor> result;
  for (const auto& one : module.parameters()) result.push_back(one.detach().clone());
  for (const auto& one : module.buffers()) result.push_back(one.clone());
  return result;
}

json lr_finder(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto model = model_of(input.at("model"));
  Learner learn(loaders_of(input), model, {.loss = loss_of(input.at("loss")), .opt_func = optimizer_of(input.at("optimizer"))});
  const auto before = copies(*model);
  const auto& o = input.at("options");
  const LrFindOptions options{.start_lr = o.value("start_lr", 1e-7), .end_lr = o.value("end_lr", 10.0), .num_it = o.value("num_it", 100),
                              .stop_div = o.value("stop_div", true), .suggest = {}};
  const auto found = learn.lr_find(options);
  const auto after = copies(*model);
  bool restored = true;
  for (size_t i = 0; i < before.size(); ++i) restored = restored && before[i].equal(after[i]);
  json suggestions;
  try {
    auto all = options;
    all.suggest = {Suggestion::kValley, Suggestion::kSlide, Suggestion::kMinimum, Suggestion::kSteep};
    suggestions = learn.lr_find(all).suggestions;
  } catch (const UsageError&) {
    suggestions = golden_error("UsageError");
  }
  return {{"lrs", json_of(found.lrs)}, {"losses", json_of(found.losses)}, {"suggestions", suggestions}, {"restored", restored}};
}

/// Our rule: too short a curve is a UsageError.
json short_curve(const GoldenCase& golden) {
  if (golden.family == "lr_find") return {{"suggestions", golden_error("UsageError")}};
  json patch = json::object();
  for (const auto& [name, value] : golden.expected.items()) {
    if (value.is_object() && value.contains("error")) patch[name] = golden_error("UsageError");
  }
  return patch;
}

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
  bool operator==(const FileStamp& other) const { return inode == other.inode && time.tv_nsec == other.time.tv_nsec && time.tv_sec == other.time.tv_sec; }
};

json tracker(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto values = doubles_of(input.at("values"));
  const auto monitor = input.at("monitor").get<std::string>();
  const auto& o = input.at("options");
  const Scratch folder;
  OneWeight model;
  json saves = json::array(), lrs = json::array();
  std::map<std::string, FileStamp> stamps;
  Learner* running = nullptr;
  const auto metric = value_metric(monitor, [&] { return values.at(static_cast<size_t>(running->epoch())); });
  Learner learn({.train = ones(1), .valid = ones(1)}, model, {.loss = mse(), .opt_func = optim::fastai::sgd(), .metrics = {metric}, .path = folder.path()});
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
  if (o.contains("comp")) comp = o.at("comp").get<std::string>().find("less") != std::string::npos ? Better::kLess : Better::kGreater;
  TrackerCallback* added = nullptr;
  const auto keep = [&](auto callback) {
    const auto shared = std::make_shared<decltype(callback)>(std::move(callback));
    added = shared.get();
    learn.add(shared);
  };
  json result = {{"error", nullptr}};
  if (kind == "SaveModelCallback") {
    int64_t every = 0;
    if (o.contains("every_epoch")) every = o.at("every_epoch").is_boolean() ? (o.at("every_epoch").get<bool>() ? 1 : 0) : o.at("every_epoch").get<int64_t>();
    keep(SaveModel({.monitor = monitor, .comp = comp, .min_delta = min_delta, .reset_on_fit = reset, .fname = o.value("fname", "model"),
                    .every_epoch = every, .at_end = o.value("at_end", false), .with_opt = o.value("with_opt", false)}));
  } else if (kind == "EarlyStoppingCallback") {
    keep(EarlyStopping({.monitor = monitor, .comp = comp, .min_delta = min_delta, .patience = o.value("patience", 1), .reset_on_fit = reset}));
  } else if (kind == "ReduceLROnPlateau") {
    keep(ReduceLROnPlateau({.monitor = monitor, .comp = comp, .min_delta = min_delta, .patience = o.value("patience", 1), .factor = o.value("factor", 10.0),
                            .min_lr = o.value("min_lr", 0.0), .reset_on_fit = reset}));
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
      {"mse", [] { return mse_metric(); }}, {"mae", [] { return mae_metric(); }}, {"accuracy", [] { return accuracy(); }}, {"error_rate", [] { return error_rate(); }},
      {"top_k_accuracy", [] { return top_k_accuracy(); }}, {"BalancedAccuracy", [] { return balanced_accuracy(); }}, {"CohenKappa", [] { return cohen_kappa(); }},
      {"HammingLoss", [] { return hamming_loss(); }}, {"MatthewsCorrCoef", [] { return matthews_corr_coef(); }},
      {"F1Score_macro", [] { return f1_score({.average = Averaging::kMacro}); }}, {"F1Score_micro", [] { return f1_score({.average = Averaging::kMicro}); }},
      {"F1Score_weighted", [] { return f1_score({.average = Averaging::kWeighted}); }}, {"FBeta2_macro", [] { return fbeta(2, {.average = Averaging::kMacro}); }},
      {"Jaccard_macro", [] { return jaccard({.average = Averaging::kMacro}); }}, {"Precision_macro", [] { return learner::precision({.average = Averaging::kMacro}); }},
      {"Recall_macro", [] { return recall({.average = Averaging::kMacro}); }}, {"RocAuc", [] { return roc_auc(); }},
      {"APScoreBinary", [] { return ap_score_binary(); }}, {"F1Score", [] { return f1_score(); }}, {"FBeta2", [] { return fbeta(2); }},
      {"Jaccard", [] { return jaccard(); }}, {"Precision", [] { return learner::precision(); }}, {"Recall", [] { return recall(); }},
      {"RocAucBinary", [] { return roc_auc_binary(); }}, {"APScoreMulti", [] { return ap_score_multi(); }}, {"F1ScoreMulti", [] { return f1_score_multi(); }},
      {"FBetaMulti2", [] { return fbeta_multi(2); }}, {"HammingLossMulti", [] { return hamming_loss_multi(); }}, {"JaccardMulti", [] { return jaccard_multi(); }},
      {"PrecisionMulti", [] { return precision_multi(); }}, {"RecallMulti", [] { return recall_multi(); }}, {"RocAucMulti", [] { return roc_auc_multi(); }},
      {"accuracy_multi", [] { return accuracy_multi(); }}, {"MatthewsCorrCoefMulti", [] { return matthews_corr_coef_multi(); }},
      {"ExplainedVariance", [] { return explained_variance(); }}, {"PearsonCorrCoef", [] { return pearson_corr_coef(); }}, {"R2Score", [] { return r2_score(); }},
      {"SpearmanCorrCoef", [] { return spearman_corr_coef(); }}, {"exp_rmspe", [] { return exp_rmspe(); }}, {"msle", [] { return msle_metric(); }},
      {"rmse", [] { return rmse(); }}, {"Dice", [] { return dice_metric(); }}, {"DiceMulti", [] { return dice_multi(); }},
      {"JaccardCoeff", [] { return jaccard_coeff(); }}, {"JaccardCoeffMulti", [] { return jaccard_coeff_multi(); }}, {"foreground_acc", [] { return foreground_acc(); }},
      {"BrierScore", [] { return brier_score(); }}, {"Perplexity", [] { return perplexity(); }}};
  const auto found = kMetrics.find(name);
  if (found == kMetrics.end()) throw std::runtime_error("unknown metric " + name);
  return found->second();
}

json metrics(const GoldenCase& golden) {
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
  const auto classes = tensor_of(golden.input.at("pred")).argmax(1).reshape({-1}), targets = tensor_of(golden.input.at("y")).reshape({-1});
  double hits = 0, all = 0;
  for (int64_t i = 0; i < targets.numel(); ++i) {
    if (targets[i].item<int64_t>() == 0) continue;
    ++all;
    hits += classes[i].item<int64_t>() == targets[i].item<int64_t>() ? 1 : 0;
  }
  return {{"foreground_acc", hits / all}};
}

Loss golden_loss(const std::string& name) {
  const std::map<std::string, Loss> kLosses = {
      {"CrossEntropyLossFlat", cross_entropy()}, {"CrossEntropyLossFlat_axis1", cross_entropy({.axis = 1})}, {"FocalLossFlat", focal()},
      {"FocalLossFlat_gamma0.5", focal(0.5)}, {"LabelSmoothing", label_smoothing()}, {"LabelSmoothingCrossEntropy", label_smoothing()},
      {"BCEWithLogitsLossFlat", bce_with_logits()}, {"BCELossFlat", bce()}, {"MSELossFlat", mse()}, {"L1LossFlat", l1()}, {"DiceLoss", dice()},
      {"DiceLoss_mean_sq", dice({.square_in_union = true, .reduction = Reduction::kMean})}};
  const auto found = kLosses.find(name);
  if (found == kLosses.end()) throw std::runtime_error("unknown loss " + name);
  return found->second;
}

json losses(const GoldenCase& golden) {
  const auto loss = golden_loss(golden.input.at("loss").get<std::string>());
  auto prediction = tensor_of(golden.input.at("pred")).requires_grad_();
  const auto value = loss(prediction, tensor_of(golden.input.at("y")));
  value.backward();
  const auto activated = loss.activation(prediction.detach());
  auto decoded = loss.decodes(activated);
  if (decoded.scalar_type() == at::kBool) decoded = decoded.to(at::kLong);
  return {{"loss", json_of(value.detach())}, {"grad", json_of(prediction.grad())}, {"activation", json_of(activated)}, {"decoded", json_of(decoded)}};
}

json mix(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto x = tensor_of(input.at("x")), y = tensor_of(input.at("y")), prediction = tensor_of(input.at("pred"));
  const auto loss = loss_of(input.at("loss"));
  json result;
  const auto draws = [&](const Learner&) {
    MixDraws own{.beta = tensor_of(input.at("beta")).to(at::kFloat), .permutation = tensor_of(input.at("perm"))};
    if (!input.at("centre_x_y").is_null()) {
      own.centre_x = input.at("centre_x_y")[0];
      own.centre_y = input.at("centre_x_y")[1];
    }
    return own;
  };
  OneWeight weight;
  Learner learn({.train = std::vector<Batch>{{{x}, {y}}}}, Model(weight, [&](const Tensors&) { return Tensors{prediction + 0 * weight->weight}; }), {.loss = loss});
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

json training(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto model = model_of(input.at("model"));
  const auto& o = input.at("options");
  Splitter splitter = one_group();
  if (!input.at("groups").is_null()) {
    std::vector<size_t> firsts;
    for (const auto& range : input.at("groups")) firsts.push_back(range[0].get<size_t>());
    splitter = child_groups(firsts);
  }
  std::vector<Metric> list;
  for (const auto& name : input.at("metrics")) list.push_back(metric_named(name));
  std::optional<double> wd;
  if (o.contains("wd")) wd = o.at("wd").get<double>();
  Learner learn(loaders_of(input), model, {.loss = loss_of(input.at("loss")), .opt_func = optimizer_of(input.at("optimizer")), .metrics = list,
                .splitter = splitter, .wd = wd, .wd_bn_bias = o.value("wd_bn_bias", false), .train_bn = o.value("train_bn", true)});
  learn.recorder().options().add_time = false;
  learn.recorder().options().train_metrics = o.value("train_metrics", false);
  if (o.contains("clip")) learn.add(GradientClip(o.at("clip").get<double>()));
  json each = json::array();
  learn.add(std::make_shared<Every>("looking", 90, [&](Learner& own, Event event) {
    if (event == Event::kAfterBatch) each.push_back({own.training() ? 1 : 0, own.loss().item<double>()});
  }));
  if (o.contains("freeze")) learn.freeze_to(o.at("freeze").get<int64_t>());
  learn.no_logging([&] {
    const auto epochs = input.at("epochs").get<int64_t>();
    const auto lr = hyper_of(input.at("lr"));
    if (o.value("one_cycle", false)) learn.fit_one_cycle(epochs, lr);
    else learn.fit(epochs, lr);
  });
  json values = json::array(), state = json::object();
  for (const auto& row : learn.recorder().values()) values.push_back(json_of(row));
  for (const auto& one : model->named_parameters()) state[one.key()] = json_of(one.value().detach());
  for (const auto& one : model->named_buffers()) state[one.key()] = json_of(one.value());
  return {{"losses", each}, {"smooth", json_of(learn.recorder().losses())}, {"names", learn.recorder().metric_names()}, {"values", values}, {"state", state}};
}

json accumulation(const GoldenCase& golden) {
  const auto& input = golden.input;
  OneWeight model;
  {
    const at::NoGradGuard no_grad;
    model->weight.fill_(input.at("weight").get<double>());
  }
  const auto x = tensor_of(input.at("x")).unsqueeze(1);
  auto loaders = tensor_loaders({x, x}, {x, x}, {.batch_size = input.at("batch_size").get<int64_t>(), .shuffle = false, .drop_last = input.value("drop_last", false)});
  loaders.valid = {};
  Learner learn(loaders, model, {.loss = [](const at::Tensor& p, const at::Tensor&) { return p.mean(); }, .opt_func = optim::fastai::sgd()});
  learn.add(GradientAccumulation(GradientAccumulationOptions{.n_acc = input.at("n_acc"), .as_fastai = true}));
  if (!input.at("clip").is_null()) learn.add(GradientClip(input.at("clip").get<double>()));
  json weights = json::array(), stepped = json::array();
  learn.add(std::make_shared<Every>("looking", 90, [&](Learner& own, Event event) {
    if (event == Event::kAfterStep) stepped.push_back(own.train_iter());
    if (event == Event::kAfterBatch && own.training()) weights.push_back(model->weight.item<float>());
  }));
  learn.no_logging([&] { learn.fit(input.at("epochs").get<int64_t>(), input.at("lr").get<double>()); });
  const auto& left = model->weight.grad();
  return {{"weights", weights}, {"stepped_at", stepped}, {"left_in_grad", left.defined() ? left.item<double>() : 0.0}};
}

json predictions(const GoldenCase& golden) {
  const auto& input = golden.input;
  Learner learn(loaders_of(input), model_of(input.at("model")), {.loss = loss_of(input.at("loss")), .metrics = {accuracy()}});
  const auto& o = input.at("options");
  PredsOptions options{.ds_idx = o.value("ds_idx", 1), .with_input = o.value("with_input", false), .with_decoded = o.value("with_decoded", false),
                       .with_loss = o.value("with_loss", false), .with_preds = o.value("with_preds", true), .with_targs = o.value("with_targs", true)};
  if (o.contains("act") && !o.at("act").is_null()) options.act = [](const at::Tensor& t) { return t; };
  const auto found = learn.get_preds(options);
  json parts = json::array();
  for (const auto& part : {found.inputs, found.preds, found.targets, found.decoded, found.losses}) {
    if (part.defined()) parts.push_back(json_of(part));
  }
  return {{"parts", parts}, {"validate", json_of(learn.validate())}};
}

json distributed_dl(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto n = input.at("n").get<int64_t>();
  const int world = input.at("world_size");
  json ranks = json::array(), lengths = json::array();
  const auto rows = at::arange(n);
  auto options = torch::data::DataLoaderOptions(input.at("batch_size").get<size_t>());
  options.drop_last(input.at("drop_last").get<bool>());
  const auto whole = data::loader(data::TensorDataset(rows), data::SeedableSequentialSampler(static_cast<size_t>(n)), options);
  for (int rank = 0; rank < world; ++rank) {
    const DistributedDL loader(whole, rank, world);
    json batches = json::array();
    for (auto& batch : loader) batches.push_back(json_of(batch));
    ranks.push_back(batches);
    lengths.push_back(loader.size());
  }
  return {{"ranks", ranks}, {"len", lengths}};
}

/// fastai's blocks, step by step and without padding; and what get_preds gives, in the dataset's order.
json gather(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto n = input.at("n").get<int64_t>(), batch_size = input.at("batch_size").get<int64_t>();
  const int world = input.at("world_size");
  json steps, in_order;
  std::mutex guard;
  run_ranks(world, [&](process::Process& process) {
    const Accelerator accelerator(process);
    const auto rows = at::arange(n);
    const auto options = torch::data::DataLoaderOptions(static_cast<size_t>(batch_size));
    const auto whole = data::loader(data::TensorDataset(rows), data::SeedableSequentialSampler(static_cast<size_t>(n)), options);
    const int64_t block = (n + world - 1) / world;
    int64_t left = std::clamp<int64_t>(n - process.rank() * block, 0, block);
    json own = json::array();
    for (auto& batch : DistributedDL(whole, process.rank(), world)) {
      const auto valid = std::min<int64_t>(left, batch.size(0));
      left -= valid;
      const auto all = gather_rows(process.group(), batch.slice(0, 0, valid));
      own.push_back(json_of(all));
    }
    const auto x = rows.unsqueeze(1).to(at::kFloat);
    OneWeight model;
    {
      const at::NoGradGuard no_grad;
      model->weight.fill_(1);
    }
    const Learner learn({.train = ones(1), .valid = tensor_loader(x, rows, {.batch_size = batch_size, .shuffle = false})}, model, {.loss = mse()});
    json predicted;
    learn.distrib_ctx(accelerator, [&] { predicted = json_of(learn.get_preds().preds.reshape({-1}).to(at::kLong)); });
    const std::lock_guard lock(guard);
    EXPECT_TRUE(steps.is_null() || steps == own) << golden.name;
    EXPECT_TRUE(in_order.is_null() || in_order == predicted) << golden.name;
    steps = own;
    in_order = predicted;
  });
  std::vector<int64_t> wanted(static_cast<size_t>(n));
  std::iota(wanted.begin(), wanted.end(), int64_t{0});
  EXPECT_EQ(in_order, json(wanted)) << golden.name;
  return {{"gathered", steps}, {"gathered_in_order", in_order}};
}

/// Our rule: len is what is given.
json counted_batches(const GoldenCase& golden) {
  json lengths = json::array();
  for (const auto& batches : golden.expected.at("ranks")) lengths.push_back(batches.size());
  return {{"len", lengths}};
}

/// The gradient of a linear's bias in front of a batch norm is rounding: fastai itself gives other values on another CPU or with
/// other threads. What follows from it (that bias, the running mean, validation) may differ, as far as the rate reaches.
json noise_before_batch_norm(const GoldenCase& golden, const json& given) {
  if (golden.family != "fit" || !given.contains("state")) return json::object();
  const auto& layers = golden.input.at("model").at("layers");
  const auto steps = std::count_if(golden.expected.at("losses").begin(), golden.expected.at("losses").end(), [](const json& row) { return row[0] == 1; });
  const double reach = 4 * golden.input.at("lr").get<double>() * static_cast<double>(steps);
  json patch = json::object(), state = golden.expected.at("state"), losses = golden.expected.at("losses"), values = golden.expected.at("values");
  bool found = false;
  for (size_t i = 0; i + 1 < layers.size(); ++i) {
    if (layers[i].at("type") != "Linear" || layers[i + 1].at("type") != "BatchNorm1d") continue;
    found = true;
    for (const auto& name : {std::to_string(i) + ".bias", std::to_string(i + 1) + ".running_mean"}) state[name] = snapped(state[name], given.at("state").at(name), reach);
  }
  if (!found) return patch;
  for (size_t i = 0; i < losses.size(); ++i) {
    if (losses[i][0] == 0) losses[i] = snapped(losses[i], given.at("losses").at(i), 0.5);
  }
  const auto& names = golden.expected.at("names");
  for (size_t row = 0; row < values.size(); ++row) {
    for (size_t i = 0; i < values[row].size(); ++i) {
      const auto name = names[i + 1].get<std::string>();
      if (name.rfind("train_", 0) != 0) values[row][i] = snapped(values[row][i], given.at("values").at(row).at(i), name == "valid_loss" ? 0.5 : 1);
    }
  }
  return {{"state", state}, {"losses", losses}, {"values", values}};
}

const std::map<std::string, Outcome> kFamilies = {
    {"events", events},     {"calls", calls},           {"order", order},           {"schedule", schedule},       {"fit_one_cycle", fits},
    {"fit_flat_cos", fits}, {"fit_sgdr", fits},         {"fine_tune", fits},        {"hypers", hypers},           {"freeze", freeze},
    {"suggest", suggestion}, {"lr_find", lr_finder},    {"tracker", tracker},       {"fit", training},            {"accumulation", accumulation},
    {"metrics", metrics},   {"losses", losses},         {"mix", mix},               {"get_preds", predictions},   {"distributed_dl", distributed_dl},
    {"gather", gather}};

const std::set<std::string> kSchedules = {"schedule", "fit_one_cycle", "fit_flat_cos", "fit_sgdr", "fine_tune"};

/// Within the tolerances of the golden README, values count as the recorded ones.
json near_recorded(const GoldenCase& golden, json given) {
  if (!given.is_object()) return given;
  for (const json* wanted : {&golden.expected, &golden.fixed}) {
    if (!wanted->is_object()) continue;
    for (const auto& [key, value] : wanted->items()) {
      if (!given.contains(key)) continue;
      const double scale = kSchedules.count(golden.family) != 0 ? 1e-6 * std::max(largest(value), 1e-12)
                           : golden.family == "suggest" || golden.family == "hypers" ? 1e-6 * largest(value)
                           : golden.family == "lr_find" && key != "losses" ? 1e-6 * largest(value)
                           : golden.family == "fit" ? 1e-5 : 2e-6;
      given[key] = snapped(given[key], value, scale);
    }
  }
  return given;
}

TEST(LearnerGolden, GivesWhatFastaiGives) {
  GoldenTopic topic("learner");
  topic.on_quirk("cancel-escapes", unwound);
  topic.on_quirk("after-fit-not-called", unwound);
  topic.on_quirk("run-after-ignored", without_cast);
  topic.on_quirk("float32-position", sgdr_in_double);
  topic.on_quirk("no-best-to-load", kept_the_last);
  topic.on_quirk("mean-of-batch-means", over_pixels);
  topic.on_quirk("unclear-error", short_curve);
  topic.on_quirk("len-differs", counted_batches);
  json given;
  topic.on_every_case([&given](const GoldenCase& golden) { return noise_before_batch_norm(golden, given); });
  topic.on_every_case([](const GoldenCase& golden) { return golden.family == "freeze" ? beyond_is_refused(golden) : json::object(); });
  topic.tolerate({.relative = 1e-6, .absolute = 2e-6});

  for (const auto& golden : topic.cases()) {
    try {
      const auto family = kFamilies.find(golden.family);
      given = family == kFamilies.end() ? json{{"unknown family", golden.family}} : near_recorded(golden, family->second(golden));
    } catch (const std::exception& error) {
      given = {{"error", "refused"}, {"message", error.what()}};
    }
    if (given.contains("refused")) given = {{"error", "refused"}};
    topic.judge(golden, given);
  }

  topic.finish();
}

}  // namespace
}  // namespace hasten::testing
