// Golden cases of the loop: events under every cancel, calls, orders, schedules.
#include <gtest/gtest.h>

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

/// fastai's Learner has no epoch before its first fit.
static std::shared_ptr<Every> recording(json& rows) {
  const auto has_fitted = std::make_shared<bool>(false);
  return std::make_shared<Every>("recording", -5, [&rows, has_fitted](Learner& learn, Event event) {
    if (event == Event::kBeforeFit) *has_fitted = true;
    const json iter = is_inner(event) ? json(learn.iter()) : json();
    const json epoch = *has_fitted ? json(learn.epoch()) : json();
    rows.push_back({std::string(name_of(event)), epoch, iter, learn.training() ? 1 : 0});
  });
}

const std::map<std::string, Scope> kScopes = {
    {"CancelFitException", Scope::kFit},     {"CancelEpochException", Scope::kEpoch},
    {"CancelTrainException", Scope::kTrain}, {"CancelValidException", Scope::kValid},
    {"CancelBatchException", Scope::kBatch}, {"CancelBackwardException", Scope::kBackward},
    {"CancelStepException", Scope::kStep}};

json golden_events(const GoldenCase& golden) {
  const auto& input = golden.input;
  json rows = json::array(), escapes;
  const auto& raise = input.at("raise");
  const auto exception = raise.is_null() ? std::string() : raise.at("exception").get<std::string>();
  const auto event = raise.is_null() ? std::nullopt : event_named(raise.at("event").get<std::string>());
  const auto raising = std::make_shared<Every>("raising", 20, [&](Learner& learn, Event now) {
    if (raise.is_null() || now != event || learn.epoch() != raise.at("epoch").get<int64_t>()) return;
    if (!raise.at("iter").is_null() &&
        (learn.iter() != raise.at("iter").get<int64_t>() || learn.training() != raise.at("training").get<bool>()))
      return;
    const auto scope = kScopes.find(exception);
    if (scope == kScopes.end()) throw std::invalid_argument(exception);
    learn.cancel(scope->second);
  });
  const Loader train = ones(input.at("train_batches")), valid = ones(input.at("valid_batches"));
  Learner learn({.train = train, .valid = valid}, OneWeight(), {.loss = mse(), .opt_func = optim::fastai::sgd()});
  learn.add(recording(rows), raising);
  try {
    learn.no_logging([&] { learn.fit(input.at("n_epoch").get<int64_t>()); });
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("callback 'raising' in " + raise.at("event").get<std::string>()),
              std::string::npos)
        << error.what();
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
    const auto name = row.at(0).get<std::string>();
    if (name.rfind("before_", 0) == 0) open.push_back(name.substr(7));
    if (name.rfind("after_", 0) == 0 && !open.empty() && open.back() == name.substr(6)) open.pop_back();
    if (name.rfind("after_cancel_", 0) == 0) continue;
  }
  const json last = rows.at(rows.size() - 1);
  for (auto scope = open.rbegin(); scope != open.rend(); ++scope) {
    const bool inner = *scope == "batch" || *scope == "step" || *scope == "backward";
    rows.push_back({"after_" + *scope, last.at(1), inner ? last.at(2) : json(), last.at(3)});
  }
  return {{"events", rows}};
}

json golden_calls(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto call = input.at("call").get<std::string>();
  json rows = json::array();
  const Loader train = ones(input.at("train_batches")), valid = ones(input.value("valid_batches", 0));
  Learner learn({.train = train, .valid = valid}, OneWeight(), {.loss = mse(), .opt_func = optim::fastai::sgd()});
  learn.add(recording(rows));
  learn.no_logging([&] {
    if (call == "get_preds")
      learn.get_preds();
    else if (call == "validate")
      learn.validate();
    else if (call == "fit_no_valid" || call == "fit")
      learn.fit(1);
    else if (call == "fit_two" || call == "fit_2")
      learn.fit(2);
    else if (call == "start_epoch")
      learn.fit(3, {}, {.start_epoch = 2});
    else if (call == "with_block")
      learn.with_events([] {});
    else if (call == "get_preds_train")
      learn.get_preds({.ds_idx = 0});
    else if (call == "get_preds_inner")
      learn.get_preds({.inner = true});
    else if (call == "two_fits")
      learn.fit(1), learn.fit(1);
    else if (call == "short_epoch")
      learn.add(ShortEpoch(0.4)), learn.fit(1);
    else
      rows = "unknown call";
  });
  return {{"events", rows}, {"escapes", nullptr}};
}

static json described(const Callback& callback) {
  return {{"order", callback.order()},
          {"run_train", callback.phases() != Phases::kValid},
          {"run_valid", callback.phases() != Phases::kTrain},
          {"remove_on_fetch", callback.removed_for_predictions()}};
}

static Accelerator lone() {
  return Accelerator(process::Process(process::RankInfo{}, comm::Group()));
}

json golden_order(const GoldenCase& golden) {
  Learner learn({.train = ones(1)}, OneWeight(), {.loss = mse()});
  learn.remove_cb("progress");
  if (golden.input.contains("added")) {
    for (const auto& one : golden.input.at("added"))
      learn.add(std::make_shared<Every>(one.at(0).get<std::string>(), one.at(1).get<int>(), [](Learner&, Event) {}));
    json names = json::array();
    for (const auto& callback : learn.ordered_cbs(Event::kBeforeFit)) {
      const std::string name(callback->name());
      names.push_back(name == "train_eval" ? "TrainEvalCallback" : name == "recorder" ? "Recorder" : name);
    }
    return {{"before_fit", names}};
  }
  json list = {{"TrainEvalCallback", described(TrainEval())},
               {"Recorder", described(Recorder())},
               {"ProgressCallback", described(Progress())},
               {"CSVLogger", described(CSVLogger())},
               {"MixedPrecision", described(MixedPrecision())},
               {"GradientClip", described(GradientClip())},
               {"GradientAccumulation", described(GradientAccumulation())},
               {"TrackerCallback", described(TrackerCallback())},
               {"SaveModelCallback", described(SaveModel())},
               {"ReduceLROnPlateau", described(ReduceLROnPlateau())},
               {"EarlyStoppingCallback", described(EarlyStopping())},
               {"TerminateOnNaNCallback", described(TerminateOnNaN())},
               {"ParamScheduler", described(ParamScheduler({}))},
               {"LRFinder", described(LrFinder())},
               {"MixUp", described(MixUp())},
               {"CutMix", described(CutMix())},
               {"BnFreeze", described(BnFreeze())},
               {"ShortEpochCallback", described(ShortEpoch())},
               {"SkipToEpoch", described(SkipToEpoch(1))},
               {"GatherPredsCallback", described(GatherPreds())},
               {"FetchPredsCallback", described(FetchPreds())},
               {"ParallelTrainer", described(ParallelTrainer())},
               {"DistributedTrainer", described(DistributedTrainer(lone()))}};
  json names = json::array();
  for (const auto& entry : learn.cbs())
    names.push_back(entry.callback->name() == "train_eval" ? "TrainEvalCallback" : "Recorder");
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

static Schedule schedule_of(const json& part) {
  const auto name = part.at(0).get<std::string>();
  const auto start = part.at(1).get<double>(), end = part.at(2).get<double>();
  if (name == "SchedLin") return sched_lin(start, end);
  if (name == "SchedCos") return sched_cos(start, end);
  if (name == "SchedNo") return sched_no(start, end);
  if (name == "SchedExp") return sched_exp(start, end);
  throw std::runtime_error("unknown schedule " + name);
}

json golden_schedule(const GoldenCase& golden) {
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

}  // namespace hasten::testing
